"""A program of its own: asks the CUDA driver what it is and prints that as JSON. Standard library only.

A driver that does not match its kernel module may hang or crash the process that starts it.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

_MAJOR, _MINOR = 75, 76
"""`CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR` of cuda.h."""


def ask() -> dict[str, Any]:
    """What libcuda.so.1 says."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"state": "absent", "problem": str(error)}
    number = ctypes.c_int()
    status = cuda.cuDriverGetVersion(ctypes.byref(number))
    if status != 0:
        return {"state": "broken", "problem": f"cuDriverGetVersion: {_text(cuda, status)}"}
    told: dict[str, Any] = {"state": "ready", "cuda": [number.value // 1000, number.value % 1000 // 10]}
    status = cuda.cuInit(0)
    if status != 0:
        # CUDA_ERROR_NO_DEVICE
        state = "no-gpu" if status == 100 else "broken"
        return {**told, "state": state, "problem": f"cuInit: {_text(cuda, status)}"}
    cuda.cuDeviceGetCount(ctypes.byref(number))
    told["gpus"] = [_gpu(cuda, index) for index in range(number.value)]
    return told


def _gpu(cuda: Any, index: int) -> dict[str, Any]:
    device, value, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    return {"name": name.value.decode("utf-8", "replace"), "capability": capability, "memory": total.value}


def _text(cuda: Any, status: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(status, ctypes.byref(text))
    return f"error {status}" + (f" ({text.value.decode('utf-8', 'replace')})" if text.value else "")


if __name__ == "__main__":
    print(json.dumps(ask()))
