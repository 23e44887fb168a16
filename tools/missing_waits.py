"""Take out the waits of ggml's scheduler and meta backend one at a time, and see whether virtual devices notice.

    python tools/missing_waits.py [--json FILE] [--markdown]

A variant is a tree without one call of ggml_backend_synchronize, ggml_backend_event_record, _wait or _synchronize
in ggml-backend.cpp or ggml-backend-meta.cpp; or one in which the mending of a race that upstream had is undone. Its
file is compiled and linked with the build's other objects, in a copy of the build made of hard links; the build
itself stays as it is. Then the workloads of wait_workloads.py run with it. Noticed is whatever differs from the
build's own numbers, races and exit status.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pyggml.native.extension import stamp
from pyggml.native.load import active_build
from pyggml.native.preprocess import source_of

ROOT = Path(__file__).resolve().parents[1]
FILES = ("ggml-backend.cpp", "ggml-backend-meta.cpp")
_CALL = re.compile(r"^(\s+)(ggml_backend_(?:synchronize|event_record|event_wait|event_synchronize)\(.*\);)$")
_FUNCTION = re.compile(r"^\S.*?\b(\w+)\(")
Answers = dict[str, dict[str, object]]


@dataclass(frozen=True)
class Variant:
    """A change to one file.

    Attributes:
        line: of the call that is taken out, from 1; 0 for another change.
        function: that the call is in.
        what: the call, or what is undone.
        changes: texts that occur once in the file, and what takes their place.
    """

    file: str
    line: int
    function: str
    what: str
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Result:
    """What was noticed.

    Attributes:
        others: workloads with other numbers.
        races: their number, and `first` of them in words.
        end: how the process ended, if not well.
    """

    others: tuple[str, ...]
    races: int
    first: str
    end: str

    @property
    def noticed(self) -> bool:
        return bool(self.others or self.races or self.end)


_WAIT = "        ggml_backend_synchronize(input_backend);\n"
_UPLOAD = """        if (ggml_backend_buffer_is_host(input->buffer)) {
            ggml_backend_tensor_set_async(split_backend, input_cpy, input->data, 0, ggml_nbytes(input));
            return;
        }
"""

UNDONE = (
    Variant(
        "ggml-backend.cpp", 0, "ggml_backend_sched_compute_splits",
        "26040: a split without inputs waits for the split before it",
        (("split->n_inputs == 0 && prev_backend_id >= 0", "false && prev_backend_id >= 0"),),
    ),
    Variant(
        "ggml-backend.cpp", 0, "ggml_backend_sched_copy_input",
        "8897: a copy from the CPU is made before the CPU goes on",
        ((_WAIT, _WAIT + _UPLOAD),),
    ),
    Variant(
        "ggml-backend.cpp", 0, "ggml_backend_tensor_set_async, ggml_backend_tensor_get_async",
        "19179: a transfer that cannot be queued comes after what is queued",
        (
            ("        ggml_backend_synchronize(backend);\n        ggml_backend_tensor_set(tensor,",
             "        ggml_backend_tensor_set(tensor,"),
            ("        ggml_backend_synchronize(backend);\n        ggml_backend_tensor_get(tensor,",
             "        ggml_backend_tensor_get(tensor,"),
        ),
    ),
)  # fmt: skip
"""Races that upstream had, by the pull request that mended them."""


def removals(source: Path) -> Iterator[Variant]:
    for name in FILES:
        function = ""
        for number, line in enumerate((source / "ggml/src" / name).read_text("utf-8").splitlines(), 1):
            if match := _FUNCTION.match(line):
                function = match[1]
            if match := _CALL.match(line):
                yield Variant(name, number, function, match[2])


def changed_text(text: str, variant: Variant) -> str:
    """The file's text with the variant's change.

    Raises:
        SystemExit: a text to be replaced does not occur once.
    """
    if variant.line:
        lines = text.split("\n")
        lines[variant.line - 1] = lines[variant.line - 1].replace(variant.what, "(void) 0;")
        text = "\n".join(lines)
    for old, new in variant.changes:
        if text.count(old) != 1:
            sys.exit(f"{variant.what}: {variant.file} does not have this text once: {old!r}")
        text = text.replace(old, new)
    return text


def build_variant(build: Path, source: Path, variant: Variant, place: Path) -> Path:
    """The library with the change."""
    ninja = ["ninja", "-t", "commands", "bin/libggml-base.so"]
    done = subprocess.run(ninja, cwd=build, capture_output=True, text=True, check=True)
    commands = done.stdout.splitlines()
    original = source / "ggml/src" / variant.file
    changed, made = place / variant.file, place / "changed.o"
    changed.write_text(changed_text(original.read_text("utf-8"), variant), "utf-8")
    compiling = next(shlex.split(one) for one in commands if one.endswith(f" -c {original}"))
    replaced = {compiling[compiling.index("-o") + 1]: str(made), str(original): str(changed)}
    words = [replaced.get(word, word) for word in compiling]
    subprocess.run([*words, f"-I{original.parent}"], cwd=build, check=True)
    library = place / "libggml-base.so.0"
    linking = next(one for one in commands if "-soname,libggml-base.so.0" in one)
    words = shlex.split(linking.removeprefix(": && ").partition(" && ")[0])
    replaced[words[words.index("-o") + 1]] = str(library)
    subprocess.run([replaced.get(word, word) for word in words], cwd=build, check=True)
    return library


def copy_build(build: Path, library: Path, place: Path) -> Path:
    """The build with another libggml-base, for PYGGML_BUILD."""
    copy = place / "build"
    for part in ("bin", "python"):
        (copy / part).mkdir(parents=True)
        for path in (build / part).iterdir():
            if path.is_symlink():
                (copy / part / path.name).symlink_to(path.readlink())
            elif path.is_file():
                os.link(path, copy / part / path.name)
    for path in build.iterdir():
        if path.suffix in (".json", ".txt"):
            os.link(path, copy / path.name)
    real = (copy / "bin/libggml-base.so").resolve()
    times = real.stat().st_mtime_ns
    real.unlink()
    shutil.copyfile(library, real)
    os.utime(real, ns=(times, times))
    # The bindings know the size of the library that they were made for.
    for path in (copy / "python").glob("extension.*.json"):
        state = json.loads(path.read_text("utf-8"))
        state["libraries"]["libggml-base.so"] = list(stamp(copy / "bin/libggml-base.so"))
        path.unlink()
        path.write_text(json.dumps(state), "utf-8")
    return copy


def run_with(build: Path | None) -> tuple[Answers, str]:
    """What the workloads answer, and how the process ended if not well."""
    env = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    if build is not None:
        env["PYGGML_BUILD"] = str(build)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("wait_workloads.py"))], env=env, capture_output=True,
        text=True, errors="replace", timeout=300, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "GGML_ASSERT" in line or "Error" in line]
        return {}, said[-1] if said else f"exit status {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1]), ""


def compare(answers: Answers, expected: Answers, end: str) -> Result:
    others = tuple(name for name in answers if answers[name]["hash"] != expected[name]["hash"])
    known = {race for answer in expected.values() for race in answer["races"]}  # type: ignore[attr-defined]
    races = [race for answer in answers.values() for race in answer["races"] if race not in known]  # type: ignore[attr-defined]
    return Result(others, len(races), races[0] if races else "", end)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the table to this file as well")
    parser.add_argument("--line", type=int, action="append", help="only the call in this line of its file")
    parser.add_argument("--undone", action="store_true", help="only the races that upstream had")
    parser.add_argument("--markdown", action="store_true", help="print rows of a Markdown table")
    arguments = parser.parse_args()
    build, began = active_build(ROOT), time.monotonic()
    source = source_of(build)
    expected, end = run_with(None)
    if end:
        sys.exit(f"the build itself does not compute the workloads: {end}")
    for name, answer in expected.items():
        for race in answer["races"]:  # type: ignore[attr-defined]
            print(f"a race of the build itself, in {name!r}: {race}", flush=True)
    variants = [] if arguments.undone else list(removals(source))
    if arguments.line:
        variants = [one for one in variants if one.line in arguments.line]
    else:
        variants += UNDONE
    table = []
    for variant in variants:
        with tempfile.TemporaryDirectory(prefix="variant-", dir=build.directory.parent) as place:
            library = build_variant(build.directory, source, variant, Path(place))
            answers, end = run_with(copy_build(build.directory, library, Path(place)))
        result = compare(answers, expected, end)
        table.append({**asdict(variant), **asdict(result), "noticed": result.noticed})
        where = f"{variant.file}:{variant.line}" if variant.line else "undone"
        late = end or ", ".join(result.others) or "-"
        row = f"{where} | {variant.function} | {variant.what} | {late} | {result.races}"
        print(f"| {row} |" if arguments.markdown else row, flush=True)
    noticed = sum(bool(row["noticed"]) for row in table)
    print(f"{noticed} of {len(table)} noticed in {time.monotonic() - began:.0f} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(table, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
