"""Kill pyggml with SIGKILL at the n-th point where it touches the world.

Points are writes, renames, removals and links below a directory, and the starts of git.

Usage: python killer.py N ROOT ARGS… runs `pyggml ARGS…`. Without a kill it prints the number of points on the last
line of standard error. `run_and_kill` does the same in a fork of this process, which is quicker.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


class KillPoints:
    """An audit hook that counts the points, and kills this process at the point `limit`; 0 for never."""

    def __init__(self, limit: int, root: str) -> None:
        self.limit, self.root, self.passed = limit, root, 0

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if event == "open":
            path, flags = args[0], args[2]
            touches = (
                isinstance(flags, int)
                and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
                and self._is_below(path)
            )
        elif event in ("os.rename", "os.remove", "os.link", "os.rmdir", "os.mkdir"):
            touches = self._is_below(args[0])
        else:
            touches = event == "subprocess.Popen"
        if touches:
            self.passed += 1
            if self.passed == self.limit:
                os.kill(os.getpid(), signal.SIGKILL)

    def _is_below(self, path: object) -> bool:
        return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(os.fspath(path)).startswith(
            self.root
        )


def run_and_kill(point: int, root: Path, *args: str) -> tuple[int, int]:
    """Run `pyggml *args` in a fork of this process, below `root`.

    Returns:
        the exit code, negative for a signal, and the number of points; 0 points if it was killed.
    """
    from tests.command_line import run_here

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            points = KillPoints(point, str(root))
            sys.addaudithook(points)
            code = run_here(*args, cwd=root).code
            os.write(writing, str(points.passed).encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        passed = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(passed or 0)


if __name__ == "__main__":
    from pyggml.cli import main

    hook = KillPoints(int(sys.argv[1]), sys.argv[2])
    sys.addaudithook(hook)
    sys.argv = ["pyggml", *sys.argv[3:]]
    try:
        main()
    finally:
        print(hook.passed, file=sys.stderr)
