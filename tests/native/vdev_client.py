"""The virtual devices through ctypes, for tests that run in a process of their own.

`run_client(build, code)` runs `code` with everything of this module in scope; it answers by `answer(...)`.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

F32 = 0
SUCCESS, FAILED = 0, -1


class Config(c.Structure):
    _fields_ = (
        ("names", c.c_char_p),
        ("memory", c.c_uint64),
        ("alignment", c.c_uint64),
        ("max_buffer", c.c_uint64),
        *((name, c.c_uint32) for name in (
            "devices", "threads", "offload_batch", "native_2d", "host_buffer", "async_", "poison", "strict",
        )),
        ("schedule", c.c_char_p),
        ("traits", c.c_char_p),
    )  # fmt: skip


class Fault(c.Structure):
    _fields_ = (
        ("nth", c.c_uint64),
        ("min_bytes", c.c_uint64),
        ("byte", c.c_uint64),
        ("kind", c.c_int32),
        ("device", c.c_int32),
        ("mask", c.c_uint32),
        ("reserved", c.c_uint32),
        ("tensor", c.c_char * 64),
    )


class InitParams(c.Structure):
    _fields_ = (("size", c.c_size_t), ("buffer", c.c_void_p), ("no_alloc", c.c_bool))


class Client:
    """ggml and the virtual devices of one build."""

    def __init__(self, bin_dir: str, library: str) -> None:
        self.base = c.CDLL(f"{bin_dir}/libggml-base.so", mode=c.RTLD_GLOBAL)
        self.ggml = c.CDLL(f"{bin_dir}/libggml.so", mode=c.RTLD_GLOBAL)
        self.vdev = c.CDLL(library)
        p, z, u = c.c_void_p, c.c_size_t, c.c_uint64
        declared: dict[Any, list[tuple[str, Any, list[Any]]]] = {
            self.base: [
                ("ggml_init", p, [InitParams]),
                ("ggml_new_tensor_1d", p, [p, c.c_int, c.c_int64]),
                ("ggml_new_tensor_2d", p, [p, c.c_int, c.c_int64, c.c_int64]),
                ("ggml_set_name", p, [p, c.c_char_p]),
                ("ggml_mul_mat", p, [p, p, p]),
                ("ggml_new_graph", p, [p]),
                ("ggml_build_forward_expand", None, [p, p]),
                ("ggml_nbytes", z, [p]),
                ("ggml_backend_alloc_ctx_tensors", p, [p, p]),
                ("ggml_backend_buffer_free", None, [p]),
                ("ggml_backend_buffer_get_base", p, [p]),
                ("ggml_backend_buffer_is_host", c.c_bool, [p]),
                ("ggml_backend_buffer_clear", None, [p, c.c_uint8]),
                ("ggml_backend_buft_alloc_buffer", p, [p, z]),
                ("ggml_backend_buft_get_max_size", z, [p]),
                ("ggml_backend_buft_get_alignment", z, [p]),
                ("ggml_backend_buft_is_host", c.c_bool, [p]),
                ("ggml_backend_dev_init", p, [p, c.c_char_p]),
                ("ggml_backend_dev_name", c.c_char_p, [p]),
                ("ggml_backend_dev_type", c.c_int, [p]),
                ("ggml_backend_dev_memory", None, [p, p, p]),
                ("ggml_backend_dev_buffer_type", p, [p]),
                ("ggml_backend_dev_host_buffer_type", p, [p]),
                ("ggml_backend_dev_supports_buft", c.c_bool, [p, p]),
                ("ggml_backend_cpu_buffer_type", p, []),
                ("ggml_backend_free", None, [p]),
                ("ggml_backend_graph_compute", c.c_int, [p, p]),
                ("ggml_backend_graph_compute_async", c.c_int, [p, p]),
                ("ggml_backend_synchronize", None, [p]),
                ("ggml_backend_event_new", p, [p]),
                ("ggml_backend_event_free", None, [p]),
                ("ggml_backend_event_record", None, [p, p]),
                ("ggml_backend_event_wait", None, [p, p]),
                ("ggml_backend_event_synchronize", None, [p]),
                ("ggml_backend_tensor_set_2d_async", None, [p, p, p, z, z, z, z, z]),
                ("ggml_backend_tensor_get_async", None, [p, p, p, z, z]),
                ("ggml_add", p, [p, p, p]),
                ("ggml_add_inplace", p, [p, p, p]),
                ("ggml_backend_tensor_set", None, [p, p, z, z]),
                ("ggml_backend_tensor_get", None, [p, p, z, z]),
                ("ggml_backend_tensor_set_2d", None, [p, p, z, z, z, z, z]),
                ("ggml_backend_tensor_get_2d", None, [p, p, z, z, z, z, z]),
                ("ggml_backend_tensor_set_async", None, [p, p, p, z, z]),
                ("ggml_backend_tensor_memset", None, [p, c.c_uint8, z, z]),
                ("ggml_backend_tensor_copy", None, [p, p]),
                ("ggml_backend_tensor_copy_async", None, [p, p, p, p]),
                ("ggml_flash_attn_ext", p, [p, p, p, p, p, c.c_float, c.c_float, c.c_float]),
                ("ggml_new_tensor_3d", p, [p, c.c_int, c.c_int64, c.c_int64, c.c_int64]),
            ],
            self.ggml: [
                ("ggml_backend_dev_count", z, []),
                ("ggml_backend_dev_get", p, [z]),
                ("ggml_backend_dev_by_type", p, [c.c_int]),
                ("ggml_backend_reg_count", z, []),
                ("ggml_backend_load", p, [c.c_char_p]),
            ],
            self.vdev: [
                ("pyggml_vdev_config_default", None, [p]),
                ("pyggml_vdev_configure", c.c_char_p, [p]),
                ("pyggml_vdev_configure_from_environment", c.c_char_p, []),
                ("pyggml_vdev_register", c.c_char_p, []),
                ("pyggml_vdev_unregister", None, []),
                ("pyggml_vdev_count", c.c_uint32, []),
                ("pyggml_vdev_device", p, [c.c_uint32]),
                ("pyggml_vdev_memory_used", u, [c.c_uint32]),
                ("pyggml_vdev_ledger_enable", None, [c.c_int]),
                ("pyggml_vdev_ledger_clear", None, []),
                ("pyggml_vdev_ledger_count", u, []),
                ("pyggml_vdev_ledger_read", u, [p, u, u]),
                ("pyggml_vdev_record_size", z, []),
                ("pyggml_vdev_races_enable", None, [c.c_int]),
                ("pyggml_vdev_races_count", u, []),
                ("pyggml_vdev_races_read", c.c_char_p, [u]),
                ("pyggml_vdev_timeline_enable", None, [c.c_int]),
                ("pyggml_vdev_timeline_count", u, []),
                ("pyggml_vdev_timeline_read", c.c_char_p, [u]),
                ("pyggml_vdev_fault_add", c.c_char_p, [p]),
                ("pyggml_vdev_fault_parse", c.c_char_p, [c.c_char_p]),
                ("pyggml_vdev_fault_clear", None, []),
                ("pyggml_vdev_fault_hits", u, [c.c_uint32]),
            ],
        }
        for library_, functions in declared.items():
            for name, result, arguments in functions:
                function = getattr(library_, name)
                function.restype, function.argtypes = result, arguments
                short = name.removeprefix("pyggml_vdev_").removeprefix("ggml_backend_").removeprefix("ggml_")
                setattr(self, short, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def set_up(self, **values: Any) -> str | None:
        """Configure; returns the error."""
        config = Config()
        self.config_default(c.byref(config))
        for name, value in values.items():
            setattr(config, name, value)
        error = self.configure(c.byref(config))
        return None if error is None else error.decode()

    def context(self) -> int:
        return int(self.init(InitParams(1 << 20, None, True)))

    def tensor(self, context: int, name: str, *shape: int) -> int:
        make = {1: self.new_tensor_1d, 2: self.new_tensor_2d, 3: self.new_tensor_3d}[len(shape)]
        tensor = int(make(context, F32, *shape))
        self.set_name(tensor, name.encode())
        return tensor

    def put(self, tensor: int, values: list[float]) -> None:
        data = (c.c_float * len(values))(*values)
        self.tensor_set(tensor, data, 0, c.sizeof(data))

    def fetch(self, tensor: int) -> bytes:
        data = c.create_string_buffer(int(self.nbytes(tensor)))
        self.tensor_get(tensor, data, 0, len(data.raw))
        return data.raw

    def floats(self, tensor: int) -> list[float]:
        raw = self.fetch(tensor)
        return list((c.c_float * (len(raw) // 4)).from_buffer_copy(raw))

    def races(self) -> list[Any]:
        """Each as (first operation, its tensor, its queue, second operation, its tensor, its queue, bytes)."""
        found = [json.loads(self.races_read(number)) for number in range(self.races_count())]
        sides = [(one["first"], one["second"], one["bytes"]) for one in found]
        return [
            [*(side[name] for side in (a, b) for name in ("operation", "tensor", "queue")), size]
            for a, b, size in sides
        ]

    def timeline(self) -> list[str]:
        """The lines of the timeline."""
        return [self.timeline_read(number).decode() for number in range(self.timeline_count())]

    def read_ledger(self) -> Any:
        import numpy as np

        from pyggml.native.ledger import Ledger, record_dtype

        assert self.record_size() == record_dtype().itemsize
        records = np.zeros(self.ledger_count(), record_dtype())
        assert self.ledger_read(records.ctypes.data, 0, len(records)) == len(records)
        names = [self.dev_name(self.device(i)).decode() for i in range(self.count())]
        return Ledger(records, tuple(names))


def answer(document: object) -> None:
    print("ANSWER " + json.dumps(document))


def run_client(build: Any, code: str, env: dict[str, str] | None = None) -> Any:
    """Run `code` in a new process; `v` is its Client. Returns what it answered and what it wrote to stderr."""
    from pyggml.native.vdev_library import find_vdev

    here = Path(__file__).parent
    program = (
        f"import sys; sys.path[:0] = [{str(here)!r}, {str(here.parents[1])!r}]\n"
        "from vdev_client import *\n"
        f"v = Client({str(build.bin_dir)!r}, {str(find_vdev(build))!r})\n{code}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "GGML_NO_BACKTRACE": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [line[7:] for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(answers[-1]), done.stderr
