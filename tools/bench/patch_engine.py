"""Time `pyggml patch apply` and a no-op against plain `git am` of the same patches, on the real tree.

Usage: python tools/bench/patch_engine.py [--runs N]

Works on a copy of the project of this checkout (the pin must be fetched): every figure is the wall time of a
whole process, interpreter start included; median and best of N runs, all in one run of this program.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ME = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "core.hooksPath=/dev/null"]


def timed(work: Callable[[], object], prepare: Callable[[], object], runs: int) -> list[float]:
    seconds = []
    for _ in range(runs):
        prepare()
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    source = ROOT / "vendor" / "llama.cpp"
    if not source.is_dir():
        sys.exit("bench: no source is fetched; run first: pyggml vendor fetch")
    with tempfile.TemporaryDirectory(prefix="pyggml-bench-") as scratch:
        copy = Path(scratch) / "project"
        (copy / "vendor").mkdir(parents=True)
        shutil.copy(ROOT / "vendor" / "pins.toml", copy / "vendor")
        shutil.copytree(ROOT / "patches", copy / "patches")
        tree = copy / "vendor" / "llama.cpp"
        shutil.copytree(source, tree, symlinks=True)

        def git(*args: str) -> str:
            done = subprocess.run(["git", *ME, *args], cwd=tree, check=True, capture_output=True, text=True)
            return done.stdout.strip()

        def pyggml(*args: str) -> None:
            subprocess.run([sys.executable, "-m", "pyggml", *args], cwd=copy, check=True, capture_output=True)

        git("update-index", "-q", "--refresh")
        pyggml("patch", "unapply")
        pin = git("describe", "--tags", "--match", "pin/*", "HEAD").removeprefix("pin/")
        base = git("rev-parse", "HEAD")
        files = sorted(str(p) for p in (copy / "patches" / pin).glob("*.patch"))
        print(
            f"pin {pin}, {len(files)} patches, {len(git('ls-files').splitlines())} files, {runs} runs each\n"
        )

        def back() -> None:
            git("reset", "--hard", "-q", base)
            git("update-index", "-q", "--refresh")

        rows = {
            "git am": timed(lambda: git("am", "-q", *files), back, runs),
            "git am -3": timed(lambda: git("am", "-q", "-3", *files), back, runs),
        }
        back()
        rows["pyggml patch apply"] = timed(
            lambda: pyggml("patch", "apply"), lambda: pyggml("patch", "unapply"), runs
        )
        rows["pyggml patch apply, no-op"] = timed(lambda: pyggml("patch", "apply"), lambda: None, runs)
        rows["pyggml patch status"] = timed(lambda: pyggml("patch", "status"), lambda: None, runs)
        rows["pyggml --help"] = timed(lambda: pyggml("--help"), lambda: None, runs)
        rows["python -c pass"] = timed(
            lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), lambda: None, runs
        )
        goals = {"pyggml patch apply": 0.6, "pyggml patch apply, no-op": 0.4, "pyggml --help": 0.25}
        print(f"{'':28}{'median s':>10}{'best s':>10}{'of git am':>11}{'goal s':>9}")
        for name, seconds in rows.items():
            median = statistics.median(seconds)
            ratio = median / statistics.median(rows["git am"])
            goal = f"{goals[name]:9.2f}" if name in goals else ""
            print(f"{name:28}{median:10.3f}{min(seconds):10.3f}{ratio:11.2f}{goal}")


if __name__ == "__main__":
    main()
