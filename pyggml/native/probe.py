"""A stand-alone program that prints the devices in ggml's registry as JSON; it uses only the standard library.

`python -I probe.py BIN_DIR` under the environment of `pyggml.native.vdev_config.program_environment`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

TYPES = ("CPU", "GPU", "IGPU", "ACCEL", "META")
"""`enum ggml_backend_dev_type`."""


def registry(bin_dir: Path) -> list[dict[str, Any]]:
    """The devices that the libraries in `bin_dir` see after loading all backends."""
    base = ctypes.CDLL(str(bin_dir / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(str(bin_dir / "libggml.so"), mode=ctypes.RTLD_GLOBAL)
    # Plugins are beside the libraries; by default ggml looks beside the program, which is Python here.
    ggml.ggml_backend_load_all_from_path(os.fsencode(bin_dir))
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    texts = [base.ggml_backend_dev_name, base.ggml_backend_dev_description, base.ggml_backend_reg_name]
    for text in texts:
        text.restype = ctypes.c_char_p
        text.argtypes = [ctypes.c_void_p]
    name, description, reg_name = texts
    base.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_backend_reg.restype = ctypes.c_void_p
    base.ggml_backend_dev_backend_reg.argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    devices = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        kind = base.ggml_backend_dev_type(device)
        devices.append(
            {
                "name": name(device).decode("utf-8", "replace"),
                "description": description(device).decode("utf-8", "replace"),
                "type": TYPES[kind] if 0 <= kind < len(TYPES) else str(kind),
                "backend": reg_name(base.ggml_backend_dev_backend_reg(device)).decode("utf-8", "replace"),
                "memory_free": free.value,
                "memory_total": total.value,
            }
        )
    return devices


if __name__ == "__main__":
    print(json.dumps(registry(Path(sys.argv[1]))))
