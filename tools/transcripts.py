"""Compares llama-parallel's transcript in every place and layout of the KV cache; exit status 1 if any differs.

python tools/transcripts.py                           SmolLM2, 8 clients, 16 sequences, temperature 0
python tools/transcripts.py --against unpatched       and compared with another build
python tools/transcripts.py --devices 4 --arguments='-ctk q8_0 -ctv q8_0'

Clients come and go as their answers end; every sequence starts as a copy of the shared system prompt. The hash
covers everything that is the same in every run: who asked what, the numbers of tokens, the answers, and their
order. On the CPU and split by layer, all sums are the same. Split by tensor, sums are in another order and may lead
to other words, but those are the same with the cache on the host. The CPU uses one thread: with more, it divides
attention over 512 or more cells into a sum per thread (use_split_kv_path in ggml-cpu/ops.cpp), which a virtual
device never does. The layout per stream is left out if the build has no --kv-per-stream. The other build's devices
start with zeroed memory, this build's with NaN, so that the defect fixed by nan-without-work does not change the
other build's transcript.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyggml import processes
from pyggml.builder.record import Build, find_build
from pyggml.errors import PyggmlError
from pyggml.models.packaged import get_model
from pyggml.native.load import active_build
from pyggml.native.programs import find_program
from pyggml.native.vdev_config import VirtualDeviceConfig, program_environment
from pyggml.native.vdev_library import find_vdev
from pyggml.project import find_project

PROGRAM = "llama-parallel"
MAX_RUNS = 4
"""How often to run a program that exits with 0 but whose output is cut off."""
LAST_LINE = "Cache misses: "
"""Part of the last line of its output (examples/parallel/parallel.cpp)."""
OPTION = "--kv-per-stream"
GROUPS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "sums as on the CPU": (
        ("cpu", ("-dev", "none")),
        ("layer, device", ("-sm", "layer", "-ngl", "99")),
        ("layer, host", ("-sm", "layer", "-ngl", "99", "-nkvo")),
    ),
    "sums of parts": (
        ("tensor, device", ("-sm", "tensor", "-ngl", "99")),
        ("tensor, host", ("-sm", "tensor", "-ngl", "99", "-nkvo")),
    ),
}
# The answers in llama-parallel's log, recognized by its colour codes: no answer contains any (examples/parallel).
ANSWER = re.compile(
    r"\x1b\[31mClient +(\d+), seq +(\d+)/ *\d+, prompt +(\d+) t, response +(\d+) t, time[^\n]*, "
    r"cache miss (\d+) \x1b\[0m *\n\nInput: +(.*?)\n\x1b\[35mResponse: (.*?)\x1b\[0m",
    re.DOTALL,
)
_ASSERTION = re.compile(r"^[^\n]*: (?:GGML_ASSERT\(.*|.*\berror: .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        layout: `one`, or `per-stream`.
        hash: hash of the transcript; None if there is none.
        answers, tokens: numbers of answers and of tokens in the transcript.
        reason: why there is no transcript.
        required: a missing transcript is a failure.
    """

    group: str
    place: str
    build: str
    layout: str
    hash: str | None
    answers: int
    tokens: int
    seconds: float
    reason: str = ""
    required: bool = True


def main() -> int:
    options = parse()
    project = find_project(Path(__file__).parent)
    build = find_build(project, options.variant) if options.variant else active_build(project.root)
    other = find_build(project, options.against) if options.against else None
    model = options.model or get_model("smollm2")
    print(
        f"{PROGRAM} with {model.name}: {options.clients} clients, {options.sequences} sequences of at most "
        f"{options.predict} tokens, temperature 0, {options.devices} virtual devices"
    )
    print(f"{'place':<16}{'build':<20}{'layout':<12}{'hash':<18}{'answers':>8}{'tokens':>8}{'s':>7}")
    rows = []
    for row in run_all(build, other, model, options):
        rows.append(row)
        print(line(row), flush=True)
    different = print_summary(rows)
    if options.json:
        document = {"model": model.name, "ok": not different, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 1 if different else 0


def run_all(build: Build, other: Build | None, model: Path, options: argparse.Namespace) -> Iterator[Row]:
    builds = [(build, layout) for layout in (("one", "per-stream") if has_layout(build) else ("one",))]
    if other is not None:
        builds.insert(0, (other, "one"))
    elif len(builds) == 1:
        print(f"the build {build.record.variant} has no {OPTION}: only one layout")
    for group, places in GROUPS.items():
        for place, arguments in places:
            if place.partition(",")[0] not in options.places:
                continue
            for one, layout in builds:
                yield run(one, group, place, arguments, layout, model, options, required=one is not other)


def has_layout(build: Build) -> bool:
    command = [find_program(build, PROGRAM), "--help"]
    return OPTION in processes.run(command, env=environment(build, None), merged=True).text


def run(
    build: Build,
    group: str,
    place: str,
    arguments: Sequence[str],
    layout: str,
    model: Path,
    options: argparse.Namespace,
    required: bool,
) -> Row:
    cells = -(-options.cells // 256) * 256
    command: list[str | Path] = [
        find_program(build, PROGRAM), "-m", model, "-np", str(options.clients), "-ns", str(options.sequences),
        "-n", str(options.predict), "--temp", "0", "-fa", "on", "-pps", "-t", "1",
        # One sequence more, for the system prompt.
        "-c", str(cells * (options.clients + 1)), *arguments, *shlex.split(options.arguments),
    ]  # fmt: skip
    if layout == "per-stream":
        command.append(OPTION)
    devices = None
    if place != "cpu":
        devices = VirtualDeviceConfig(options.devices, threads=options.threads, poison=required)
    start = time.monotonic()
    for _ in range(MAX_RUNS):
        done = processes.run(command, env=environment(build, devices), limit=options.timeout, merged=True)
        # Without its last line the output is cut off: without the patch log-at-exit, what is queued at exit is lost.
        if done.status != 0 or LAST_LINE in done.text:
            break
    output, reason = done.text, failure_reason(done, options.timeout)
    seconds = time.monotonic() - start
    answers = ANSWER.findall(output)
    tokens = sum(int(answer[3]) for answer in answers)
    if not reason and len(answers) != options.sequences:
        reason = f"its output has {len(answers)} of {options.sequences} answers"
    digest = None if reason else hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:16]
    return Row(
        group,
        place,
        build.record.variant,
        layout,
        digest,
        len(answers),
        tokens,
        round(seconds, 1),
        reason,
        required,
    )


def environment(build: Build, devices: VirtualDeviceConfig | None) -> Mapping[str, str]:
    env = {**os.environ, "GGML_NO_BACKTRACE": "1", "LLAMA_LOG_COLORS": "on"}
    if devices is None:
        return {name: value for name, value in env.items() if name != "GGML_BACKEND_PATH"}
    return program_environment(find_vdev(build), devices, env)


def failure_reason(done: processes.Finished, timeout: float) -> str:
    """Why the output is not a transcript; empty if it is."""
    if done.status is None:
        return f"still running after {timeout} s"
    if done.status == 0:
        return "" if LAST_LINE in done.text else f"its output was cut off in each of {MAX_RUNS} runs"
    status = done.status
    end = f"ended by {processes.signal_name(-status)}" if status < 0 else f"exit status {status}"
    lines = _ASSERTION.findall(done.text) or [text for text in done.text.splitlines() if text.strip()]
    return f"{end}: {lines[-1].strip()}" if lines else end


def line(row: Row) -> str:
    start = f"{row.place:<16}{row.build:<20}{row.layout:<12}"
    if row.hash is None:
        return f"{start}- {row.reason}"
    return f"{start}{row.hash:<18}{row.answers:>8}{row.tokens:>8}{row.seconds:>7.1f}"


def print_summary(rows: Sequence[Row]) -> bool:
    """Print which groups agree; return whether any does not."""
    different = False
    for group in dict.fromkeys(row.group for row in rows):
        own = [row for row in rows if row.group == group]
        hashes = {row.hash for row in own if row.hash is not None}
        failed = [row for row in own if row.hash is None]
        bad = len(hashes) != 1 or any(row.required for row in failed)
        different |= bad
        names = ", ".join(dict.fromkeys(row.place for row in own))
        counts = f"{len(own) - len(failed)} transcripts, {len(hashes)} hash{'es' * (len(hashes) != 1)}"
        missing = f", {len(failed)} missing" if failed else ""
        print(f"{group} ({names}): {counts}{missing}: {'DIFFERENT' if bad else 'the same'}")
    return different


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="a GGUF file with a vocabulary; SmolLM2 by default"
    )
    parser.add_argument("--variant", metavar="V", help="the build; by default the active one")
    parser.add_argument(
        "--against", metavar="V", help="another build to compare with, normally the unpatched one"
    )
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="number of clients; 8 by default")
    parser.add_argument(
        "--sequences", type=int, default=16, metavar="N", help="number of sequences; 16 by default"
    )
    parser.add_argument(
        "--predict", type=int, default=32, metavar="N", help="maximum tokens of an answer; 32 by default"
    )
    parser.add_argument(
        "--cells", type=int, default=512, metavar="N", help="cells of each sequence; 512 by default"
    )
    parser.add_argument(
        "--devices", type=int, default=2, metavar="N", help="number of virtual devices; 2 by default"
    )
    parser.add_argument(
        "--places", type=lambda text: text.split(","), default=["cpu", "layer", "tensor"], metavar="PLACE,...",
        help="some of cpu, layer, tensor; all by default",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=int, default=2, metavar="N", help="threads of each device; 2 by default"
    )
    parser.add_argument("--arguments", default="", metavar="TEXT", help=f"more arguments for {PROGRAM}")
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="S", help="seconds for each run; 300 by default"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    options = parser.parse_args()
    if min(options.clients, options.sequences, options.predict, options.cells, options.threads) < 1:
        parser.error("numbers must be at least 1")
    if unknown := set(options.places) - {"cpu", "layer", "tensor"}:
        parser.error(f"there is no place {sorted(unknown)[0]}; use some of cpu, layer, tensor")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PyggmlError as failure:
        print(f"transcripts: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
