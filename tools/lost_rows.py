"""Repeats a build's check beside busy loops, and counts runs of its programs that lose output.

python tools/lost_rows.py                    the active build: 100 checks beside two busy loops
python tools/lost_rows.py --variant unpatched --runs 40

Exit status 1 if a check failed, or if a run lost output and had to be repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyggml.builder.check import check_build
from pyggml.builder.record import find_build
from pyggml.errors import PyggmlError
from pyggml.native.load import active_build
from pyggml.processes import Child
from pyggml.project import find_project


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="number of checks; 100 by default")
    parser.add_argument(
        "--loops", type=int, default=2, metavar="N", help="number of busy loops; 2 by default"
    )
    parser.add_argument("--variant", metavar="V", help="the build; by default the active one")
    options = parser.parse_args()
    project = find_project(Path(__file__).parent)
    build = find_build(project, options.variant) if options.variant else active_build(project.root)
    start = time.monotonic()
    repeated = failed = 0

    def say(text: str) -> None:
        nonlocal repeated
        repeated += "lost" in text

    loops = [
        Child(["sh", "-c", "while :; do :; done"], stdout=subprocess.DEVNULL) for _ in range(options.loops)
    ]
    try:
        for number in range(1, options.runs + 1):
            check = check_build(build, again=True, say=say)
            failed += not check.ok
            for program in check.programs:
                if program.outcome != "passed":
                    print(f"run {number}: {program.name} {program.outcome}: {program.detail}", flush=True)
    finally:
        for loop in loops:
            loop.kill_group()
            loop.wait()
    print(
        f"{options.runs} checks of {build.record.variant} beside {options.loops} busy loops in "
        f"{time.monotonic() - start:.0f} s: {failed} failed, {repeated} runs lost output"
    )
    return 1 if failed or repeated else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PyggmlError as failure:
        print(f"lost_rows: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
