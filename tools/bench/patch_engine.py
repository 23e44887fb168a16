"""Time the patch commands against plain git on the same patches, side by side.

Usage: python tools/bench/patch_engine.py [--patches N] [--files N] [--runs N] [--real]

Makes an upstream of N files in two versions and a series of N patches (always the same ones), and times on it, as
whole processes, interpreter start included: import, apply, refresh and verify against `git am`, export against
`git format-patch`, and rebase against `git rebase`. With --real also `pyggml patch apply` of the series of this
checkout against `git am` of its files. Medians of N runs; ours and git's runs alternate.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ME = [
    "-c",
    "user.name=bench",
    "-c",
    "user.email=bench@example.org",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "gc.auto=0",
]
LINES = 120


@dataclass(frozen=True)
class Row:
    """A command of ours and git's, each with what makes it ready; `goal` is the ratio that is wanted."""

    name: str
    ours: Callable[[], object]
    ready: Callable[[], object]
    git: Callable[[], object]
    git_ready: Callable[[], object]
    goal: float


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {' '.join(command[:6])} … failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout.strip()


def git(tree: Path, *args: str) -> str:
    return run(["git", *ME, *args], tree)


def pyggml(project: Path, *args: str) -> str:
    return run([sys.executable, "-m", "pyggml", *args], project)


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 -- for the same series every time, not for secrets


def timed(work: Callable[[], object], ready: Callable[[], object]) -> float:
    ready()
    os.sync()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def table(rows: list[Row], runs: int) -> None:
    print(f"{'':22}{'ours s':>9}{'git s':>9}{'ratio':>8}{'wanted':>8}", flush=True)
    for row in rows:
        ours, theirs = [], []
        for _ in range(runs):
            ours.append(timed(row.ours, row.ready))
            theirs.append(timed(row.git, row.git_ready))
        a, b = statistics.median(ours), statistics.median(theirs)
        print(f"{row.name:22}{a:9.2f}{b:9.2f}{a / b:8.2f}{row.goal:8.1f}", flush=True)


def write_upstream(directory: Path, files: int, seed: random.Random, *, changed: bool) -> None:
    """Files of functions whose lines are all different; `changed` has new first lines in a third of them."""
    for number in range(files):
        path = directory / f"dir{number % 60:02d}" / f"file{number:04d}.c"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"int value_{number}_{line}(void) {{ return {seed.randrange(10**6)}; }}" for line in range(LINES)
        ]
        if changed and number % 3 == 0:
            lines[:1] = [f"/* new {number} {line} */" for line in range(4)]
        path.write_text("\n".join(lines) + "\n", "utf-8")


def write_patches(tree: Path, count: int, files: int, seed: random.Random) -> None:
    """Commit `count` changes, each of one to three files."""
    for number in range(count):
        for which in seed.sample(range(files), seed.choice((1, 1, 2, 3))):
            path = tree / f"dir{which % 60:02d}" / f"file{which:04d}.c"
            lines = path.read_text("utf-8").splitlines()
            at = seed.randrange(12, len(lines) - 4)
            lines[at : at + 1] = [f"int patch_{number}_{which}(void) {{ return {number}; }}", lines[at]]
            path.write_text("\n".join(lines) + "\n", "utf-8")
        git(
            tree,
            "commit",
            "-qam",
            f"part {number % 7} : change {number}\n\nIt was wrong before, since {number}.",
        )


def synthetic(scratch: Path, patches: int, files: int) -> list[Row]:
    old, new = scratch / "old", scratch / "new"
    write_upstream(old, files, seeded(1), changed=False)
    write_upstream(new, files, seeded(1), changed=True)
    plain = scratch / "plain"
    shutil.copytree(old, plain)
    git(plain, "init", "-q", "-b", "main")
    git(plain, "add", "-A")
    git(plain, "commit", "-qm", "old")
    git(plain, "tag", "old")
    git(plain, "rm", "-rq", "--cached", ".")
    git(plain, "--work-tree", str(new), "add", "-A")
    git(plain, "commit", "-qm", "new")
    git(plain, "tag", "new")
    git(plain, "reset", "-q", "--hard", "old")
    write_patches(plain, patches, files, seeded(2))
    git(plain, "tag", "done")
    mailbox = scratch / "series.mbox"
    mailbox.write_text(git(plain, "format-patch", "--stdout", "old..done") + "\n", "utf-8")

    project = scratch / "project"
    (project / "patches").mkdir(parents=True)
    (project / "vendor").mkdir()
    (project / "vendor" / "pins.toml").write_text('upstream = "up"\n', "utf-8")
    pyggml(project, "vendor", "add", "old", "--directory", str(old), "--default")
    pyggml(project, "vendor", "add", "newer", "--directory", str(new))
    tree = project / "vendor" / "up"
    pyggml(project, "patch", "apply")
    base = git(tree, "rev-parse", "HEAD")
    pyggml(project, "patch", "import", str(mailbox))
    series = scratch / "series"
    shutil.copytree(project / "patches", series)
    top = git(tree, "rev-parse", "HEAD")
    pins = (project / "vendor" / "pins.toml").read_bytes()
    # What the import has written down about the work tree.
    applied = (project / ".pyggml" / "applied.json").read_bytes()

    def without_series() -> None:
        shutil.rmtree(project / "patches")
        (project / "patches").mkdir()
        shutil.rmtree(project / ".pyggml", ignore_errors=True)
        git(tree, "reset", "-q", "--hard", base)

    def with_series(at: str) -> None:
        shutil.rmtree(project / "patches")
        shutil.copytree(series, project / "patches")
        (project / "vendor" / "pins.toml").write_bytes(pins)
        shutil.rmtree(project / ".pyggml", ignore_errors=True)
        (project / ".pyggml").mkdir()
        (project / ".pyggml" / "applied.json").write_bytes(applied)
        git(tree, "reset", "-q", "--hard", at)

    def unapplied() -> None:
        with_series(top)
        pyggml(project, "patch", "unapply")

    def edited() -> None:
        with_series(top)
        path = tree / "dir07" / "file0007.c"
        path.write_text(path.read_text("utf-8").replace("return", "return 0 +", 1), "utf-8")

    def plain_at(ref: str) -> Callable[[], object]:
        return lambda: git(plain, "reset", "-q", "--hard", ref)

    def rebased() -> None:
        shutil.rmtree(scratch / "out", ignore_errors=True)
        git(plain, "reset", "-q", "--hard", "done")

    def clean(directory: str) -> Callable[[], object]:
        return lambda: shutil.rmtree(scratch / directory, ignore_errors=True)

    def am() -> str:
        return git(plain, "am", "-q", str(mailbox))

    back = plain_at("old")
    out = scratch / "exported"
    return [
        Row("import", lambda: pyggml(project, "patch", "import", str(mailbox)), without_series, am, back, 2),
        Row(
            "rebase",
            lambda: pyggml(project, "patch", "rebase", "--from", "old", "--onto", "newer"),
            lambda: with_series(top),
            lambda: git(plain, "rebase", "-q", "--onto", "new", "old"),
            rebased,
            2,
        ),
        Row(
            "export",
            lambda: pyggml(project, "patch", "export", str(out)),
            lambda: (with_series(top), clean("exported")()),
            lambda: git(plain, "format-patch", "-q", "-o", str(scratch / "out"), "old..done"),
            clean("out"),
            2,
        ),
        Row("apply", lambda: pyggml(project, "patch", "apply"), unapplied, am, back, 1),
        Row("refresh", lambda: pyggml(project, "patch", "refresh"), edited, am, back, 1),
        Row("verify", lambda: pyggml(project, "patch", "verify"), lambda: with_series(top), am, back, 1),
    ]


def real(scratch: Path) -> list[Row]:
    source = ROOT / "vendor" / "llama.cpp"
    if not source.is_dir():
        sys.exit("bench: no source is fetched; run first: pyggml vendor fetch")
    copy = scratch / "copy"
    (copy / "vendor").mkdir(parents=True)
    shutil.copy(ROOT / "vendor" / "pins.toml", copy / "vendor")
    shutil.copytree(ROOT / "patches", copy / "patches")
    tree, plain = copy / "vendor" / "llama.cpp", scratch / "llama.cpp"
    shutil.copytree(source, tree, symlinks=True)
    git(tree, "update-index", "-q", "--refresh")
    pyggml(copy, "patch", "unapply")
    shutil.copytree(tree, plain, symlinks=True)
    git(plain, "update-index", "-q", "--refresh")
    pin = git(tree, "describe", "--tags", "--match", "pin/*", "HEAD").removeprefix("pin/")
    base = git(tree, "rev-parse", "HEAD")
    files = sorted(str(p) for p in (copy / "patches" / pin).glob("*.patch"))

    def back() -> None:
        git(plain, "reset", "--hard", "-q", base)
        git(plain, "update-index", "-q", "--refresh")

    def unapply() -> None:
        pyggml(copy, "patch", "unapply")

    def am() -> str:
        return git(plain, "am", "-q", *files)

    apply = ("patch", "apply")
    return [
        Row(f"apply, real ({len(files)})", lambda: pyggml(copy, *apply), unapply, am, back, 2.2),
        Row("apply, nothing to do", lambda: pyggml(copy, *apply), lambda: pyggml(copy, *apply), am, back, 1),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patches", type=int, default=300)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--real", action="store_true", help="also the series of this checkout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pyggml-bench-") as scratch:
        rows = synthetic(Path(scratch), options.patches, options.files)
        load = os.getloadavg()[0]
        print(
            f"{options.patches} patches, {options.files} files, {options.runs} runs each, load {load:.1f}\n"
        )
        table(rows, options.runs)
        if options.real:
            table(real(Path(scratch)), max(options.runs, 5))


if __name__ == "__main__":
    main()
