"""A program of its own: loads a library, every symbol of it at once, and prints as JSON what went wrong.

`python -I load_probe.py LIBRARY [DRIVER]`, standard library only. DRIVER stands in for libcuda.so.1: the
dynamic linker takes a library that is there already for one that is needed under the same SONAME.
"""

from __future__ import annotations

import ctypes
import json
import sys


def load(library: str, driver: str | None) -> str:
    """The dynamic linker's complaint; empty if there is none."""
    try:
        if driver is not None:
            ctypes.CDLL(driver, mode=ctypes.RTLD_GLOBAL)
        # ctypes adds RTLD_NOW: a symbol that nobody has is told here, not when it is called.
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps({"problem": load(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)}))
