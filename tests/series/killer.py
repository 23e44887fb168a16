"""Run pyggml and kill it with SIGKILL at the n-th point where it touches the world.

Usage: python killer.py N ROOT ARGS…; points are writes, renames, removals and links below ROOT, and the
starts of git. Without a kill it prints the number of points on the last line of standard error.
"""

from __future__ import annotations

import os
import signal
import sys

LIMIT, ROOT, ARGS = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
points = 0


def hook(event: str, args: tuple[object, ...]) -> None:
    global points
    if event == "open":
        path, flags = args[0], args[2]
        touches = (
            isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and is_below(path)
        )
    elif event in ("os.rename", "os.remove", "os.link", "os.rmdir", "os.mkdir"):
        touches = is_below(args[0])
    else:
        touches = event == "subprocess.Popen"
    if touches:
        points += 1
        if points == LIMIT:
            os.kill(os.getpid(), signal.SIGKILL)


def is_below(path: object) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(os.fspath(path)).startswith(ROOT)


from pyggml.cli import main  # noqa: E402

sys.addaudithook(hook)
sys.argv = ["pyggml", *ARGS]
try:
    main()
finally:
    print(points, file=sys.stderr)
