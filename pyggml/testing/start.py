"""The start of an isolated test's process: a script that runs before anything else is imported.

usage: start.py DESCRIPTOR, of the job as JSON (see process.IsolatedJob).
"""

import faulthandler
import json
import os
import sys


def main() -> int:
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        job = json.load(file)
    # A crash or a hang during the collection is reported as well.
    faulthandler.enable(job["fault"])
    if job["reach"] is not None:
        faulthandler.dump_traceback_later(job["reach"], exit=True, file=job["fault"])
    # Processes that the test starts inherit PYGGML_ABORT_FD, but not the descriptor.
    os.environ["PYGGML_ABORT_PID"] = str(os.getpid())
    sys.path[:] = job["path"]
    from pyggml.testing.child import run

    return run(job)


if __name__ == "__main__":
    sys.exit(main())
