"""The virtual devices: memory, transfers, computation, ledger and faults, through their C functions."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError
from pyggml.native.ledger import Ledger
from pyggml.native.programs import find_program, seen_devices
from pyggml.native.vdev_config import VirtualDeviceConfig, program_environment
from pyggml.native.vdev_library import SOURCES, compile_vdev, find_vdev
from pyggml.processes import run_attached
from tests.native.vdev_client import run_client

pytestmark = pytest.mark.native

DEFAULTS = VirtualDeviceConfig()


def run(
    build: Build, *command: str, devices: VirtualDeviceConfig = DEFAULTS
) -> subprocess.CompletedProcess[str]:
    env = program_environment(find_vdev(build), devices)
    return subprocess.run(
        [find_program(build, command[0]), *command[1:]],
        env=env, capture_output=True, text=True, errors="replace", timeout=300, check=False,
    )  # fmt: skip


def test_devices_look_like_gpus_and_own_their_memory(build: Build) -> None:
    got, _ = run_client(build, """
v.set_up(devices=3, names=b"one,two,three", memory=1 << 20)
d = [v.device(i) for i in range(3)]
bufts = [v.dev_buffer_type(x) for x in d]
free, total = c.c_size_t(), c.c_size_t()
v.dev_memory(d[1], c.byref(free), c.byref(total))
answer(dict(names=[v.dev_name(x).decode() for x in d], types=[v.dev_type(x) for x in d],
    memory=[free.value, total.value], host=[v.buft_is_host(b) for b in bufts],
    supports=[[v.dev_supports_buft(x, b) for b in bufts] for x in d],
    cpu=v.dev_supports_buft(d[0], v.cpu_buffer_type()), none=v.device(3)))
""")  # fmt: skip
    assert got["names"] == ["one", "two", "three"]
    assert got["types"] == [1, 1, 1]
    assert got["memory"] == [1 << 20, 1 << 20]
    assert got["host"] == [False] * 3
    assert got["supports"] == [[True, False, False], [False, True, False], [False, False, True]]
    assert got["cpu"] is False
    assert got["none"] is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("devices=0", "0 virtual devices asked for; 1 to 16 are possible"),
        ("devices=17", "17 virtual devices asked for; 1 to 16 are possible"),
        ("devices=3, names=b'A,B'", "2 names given for 3 virtual devices"),
        ("devices=2, names=b'A,a'", "two devices are named a"),
        ("devices=2, names=b'A,'", "a device name has 0 characters"),
        ("alignment=48", "a buffer alignment of 48 bytes"),
        ("memory=0", "a device memory of 0 bytes"),
        ("threads=0", "0 threads per device"),
    ],
)
def test_impossible_devices_are_refused_and_change_nothing(build: Build, values: str, message: str) -> None:
    got, _ = run_client(build, f"v.set_up(devices=5); e = v.set_up({values}); answer([e, v.count()])")
    assert message in got[0]
    assert got[1] == 5


def test_memory_is_enforced_and_given_back(build: Build) -> None:
    got, err = run_client(build, """
v.set_up(devices=1, memory=1 << 20, max_buffer=700000)
t = v.dev_buffer_type(v.device(0))
a = v.buft_alloc_buffer(t, 600000)
free, total = c.c_size_t(), c.c_size_t()
v.dev_memory(v.device(0), c.byref(free), c.byref(total))
b = v.buft_alloc_buffer(t, (1 << 20) - 600000 + 1)   # a byte more than is left
d = v.buft_alloc_buffer(t, (1 << 20) - 600000)       # exactly what is left
full = v.memory_used(0)
v.buffer_free(a); v.buffer_free(d)
e = v.buft_alloc_buffer(t, 700001)                   # there is room, but not in one buffer
answer(dict(first=bool(a), free=free.value, second=bool(b), third=bool(d), full=full,
    after=v.memory_used(0), large=bool(e), max=v.buft_get_max_size(t)))
""")  # fmt: skip
    assert got == {
        "first": True, "free": (1 << 20) - 600000, "second": False, "third": True, "full": 1 << 20,
        "after": 0, "large": False, "max": 700000,
    }  # fmt: skip
    assert "VDEV0: cannot allocate 0.43 MiB: out of memory" in err
    assert "larger than the largest buffer" in err


@pytest.mark.parametrize("alignment", [16, 128, 4096])
def test_buffers_are_aligned_as_asked_and_not_better(build: Build, alignment: int) -> None:
    got, _ = run_client(build, f"""
v.set_up(devices=1, alignment={alignment})
t = v.dev_buffer_type(v.device(0))
answer([v.buft_get_alignment(t), v.buffer_get_base(v.buft_alloc_buffer(t, 1000))])
""")  # fmt: skip
    assert got[0] == alignment
    assert got[1] % (2 * alignment) == alignment


@pytest.mark.parametrize(("poison", "byte"), [(1, "ff"), (0, "00")])
def test_fresh_memory_is_nan_or_zero(build: Build, poison: int, byte: str) -> None:
    got, _ = run_client(build, f"""
v.set_up(devices=1, poison={poison})
x = v.context(); t = v.tensor(x, "t", 100); v.alloc_ctx_tensors(x, v.dev_init(v.device(0), None))
answer(v.fetch(t).hex())
""")  # fmt: skip
    assert got == byte * 400
    if poison:
        assert all(f != f for f in struct.unpack("<100f", bytes.fromhex(got)))


def test_ledger_of_a_simple_program_holds_exactly_its_bytes(build: Build) -> None:
    got, _ = run_client(build, """
v.set_up(devices=2)
s = [v.dev_init(v.device(i), None) for i in range(2)]
x, y = v.context(), v.context()
w = v.tensor(x, "w", 8, 3); a = v.tensor(x, "a", 8, 5); r = v.mul_mat(x, w, a); v.set_name(r, b"r")
b = v.tensor(y, "b", 8, 5)
bx, by = v.alloc_ctx_tensors(x, s[0]), v.alloc_ctx_tensors(y, s[1])
v.ledger_enable(1); v.ledger_clear()
v.put(w, [float(i) for i in range(24)])
data = (c.c_float * 40)(*range(40))
v.tensor_set_async(s[0], a, data, 0, 160)
v.tensor_set_2d(a, data, 32, 8, 3, 32, 8)
g = v.new_graph(x); v.build_forward_expand(g, r)
status = v.graph_compute(s[0], g)
v.fetch(r)
out = c.create_string_buffer(64); v.tensor_get_2d(a, out, 4, 4, 2, 32, 32)
v.tensor_copy_async(s[0], s[1], a, b)
v.tensor_memset(b, 7, 16, 32)
v.buffer_clear(by, 0)
v.buffer_free(by)
v.ledger_enable(0)
v.put(w, [0.0] * 24)
l = v.read_ledger()
answer(dict(status=status, sums=l.sums("kind"), records=[(r.sequence, r.kind, r.device, r.peer, r.tensor,
    r.bytes, r.rows, r.offset, r.stride, r.split, r.asynchronous) for r in l]))
""")  # fmt: skip
    size = got["records"][-1][5]
    assert got["status"] == 0
    assert got["records"] == [
        [0, "set", "VDEV0", None, "w", 96, 1, 0, 0, 0, False],
        [1, "set", "VDEV0", None, "a", 160, 1, 0, 0, 0, True],
        [2, "set_2d", "VDEV0", None, "a", 24, 3, 32, 32, 0, False],
        [3, "compute", "VDEV0", None, "r", 0, 1, 0, 0, 0, False],
        [4, "get", "VDEV0", None, "r", 60, 1, 0, 0, 1, False],
        [5, "get_2d", "VDEV0", None, "a", 8, 2, 4, 32, 1, False],
        [6, "cpy", "VDEV1", "VDEV0", "b", 160, 1, 0, 0, 0, True],
        [7, "memset", "VDEV1", None, "b", 32, 1, 16, 0, 0, False],
        [8, "clear", "VDEV1", None, "", size, 1, 0, 0, 0, False],
        [9, "free", "VDEV1", None, "", size, 1, 0, 0, 0, False],
    ]
    assert size >= 160


def test_without_native_2d_ggml_makes_a_call_for_every_row(build: Build) -> None:
    code = """
v.set_up(devices=1, native_2d={0})
s = v.dev_init(v.device(0), None)
x = v.context(); a = v.tensor(x, "a", 8, 5); v.alloc_ctx_tensors(x, s)
v.put(a, [0.0] * 40)
v.ledger_enable(1)
data = (c.c_float * 6)(1, 2, 3, 4, 5, 6)
v.tensor_set_2d(a, data, 4, 8, 3, 32, 8)
out = (c.c_float * 6)()
v.tensor_get_2d(a, out, 4, 8, 3, 32, 8)
l = v.read_ledger()
answer(dict(kinds=l.sums("kind", of="count"), bytes=l.bytes, all=v.floats(a), back=list(out)))
"""
    native, _ = run_client(build, code.format(1))
    rows, _ = run_client(build, code.format(0))
    assert native["kinds"] == {"set_2d": 1, "get_2d": 1}
    assert rows["kinds"] == {"set": 3, "get": 3}
    assert native["bytes"] == rows["bytes"] == 48
    expected = [0.0] * 40
    for row in range(3):
        expected[8 * row + 1 : 8 * row + 3] = [2.0 * row + 1, 2.0 * row + 2]
    assert native["all"] == rows["all"] == expected
    assert native["back"] == rows["back"] == [1, 2, 3, 4, 5, 6]


def test_a_refused_copy_takes_the_slow_path_and_arrives(build: Build) -> None:
    got, _ = run_client(build, """
v.set_up(devices=2)
s = [v.dev_init(v.device(i), None) for i in range(2)]
x, y = v.context(), v.context()
a, b = v.tensor(x, "a", 4), v.tensor(y, "b", 4)
v.alloc_ctx_tensors(x, s[0]); v.alloc_ctx_tensors(y, s[1])
v.put(a, [1, 2, 3, 4])
v.ledger_enable(1)
assert v.fault_parse(b"copy:device=1") is None
v.tensor_copy_async(s[0], s[1], a, b)
l = v.read_ledger()
answer(dict(kinds=[(r.kind, r.refused) for r in l], bytes=l.bytes, b=v.floats(b), hits=v.fault_hits(0)))
""")  # fmt: skip
    assert got["kinds"] == [["cpy", True], ["cpy", True], ["get", False], ["set", False]]
    assert got["bytes"] == 32
    assert got["b"] == [1, 2, 3, 4]
    assert got["hits"] == 2


def test_faults_strike_the_event_that_they_name(build: Build) -> None:
    got, err = run_client(build, """
v.set_up(devices=2)
t = [v.dev_buffer_type(v.device(i)) for i in range(2)]
assert v.fault_parse(b"alloc:nth=2,device=1,min=1K;compute:nth=2;set:tensor=w*,byte=5,mask=0x80;get:nth=1") is None
allocs = [bool(v.buft_alloc_buffer(t[i], n)) for i, n in ((1, 2048), (0, 2048), (1, 512), (1, 2048), (1, 2048))]
s = v.dev_init(v.device(0), None)
x = v.context(); w = v.tensor(x, "w1", 4, 1); a = v.tensor(x, "a", 4, 1); r = v.mul_mat(x, w, a)
v.alloc_ctx_tensors(x, s)
v.put(a, [1, 1, 1, 1]); v.put(w, [1, 1, 1, 1])
first = v.fetch(w).hex(); second = v.fetch(w).hex()
g = v.new_graph(x); v.build_forward_expand(g, r)
statuses = [v.graph_compute(s, g) for _ in range(3)]
answer(dict(allocs=allocs, first=first, second=second, a=v.fetch(a).hex(), statuses=statuses,
    hits=[v.fault_hits(i) for i in range(5)]))
""")  # fmt: skip
    one = "0000803f"
    assert got["allocs"] == [True, True, True, False, True]
    assert got["second"] == one + "0080803f" + one * 2  # the set's byte 5
    assert got["first"] == "ff00803f" + "0080803f" + one * 2  # and the first get's byte 0
    assert got["a"] == one * 4
    assert got["statuses"] == [0, -1, 0]
    assert got["hits"] == [1, 1, 1, 1, 0]
    assert "injected fault" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("melt", "the kind must be alloc, copy, compute, set or get"),
        ("set:colour=red", "is none of nth=N"),
        ("set:nth=x", "is none of nth=N"),
        ("set:mask=0", "1 to 255 flip something"),
        ("get:device=16", "0 to 15 exist"),
        ("alloc:tensor=w", "cannot go by tensor"),
        ("alloc:nth=1;get:tensor=" + "x" * 64, "is none of nth=N"),
    ],
)
def test_unreadable_faults_are_refused_as_a_whole(build: Build, text: str, message: str) -> None:
    got, _ = run_client(build, f"""
v.set_up(devices=1)
e = v.fault_parse({text.encode()!r})
answer([e.decode(), bool(v.buft_alloc_buffer(v.dev_buffer_type(v.device(0)), 10))])
""")  # fmt: skip
    assert message in got[0]
    assert got[1] is True


def test_a_graph_that_reaches_into_another_device_fails_as_on_a_gpu(build: Build) -> None:
    code = """
v.set_up(devices=2, strict={0})
s = [v.dev_init(v.device(i), None) for i in range(2)]
x, y, z = v.context(), v.context(), v.context()
w = v.tensor(x, "far", 4, 1); a = v.tensor(y, "near", 4, 1); r = v.mul_mat(z, w, a); v.set_name(r, b"r")
v.alloc_ctx_tensors(x, s[0]); v.alloc_ctx_tensors(y, s[1]); v.alloc_ctx_tensors(z, s[1])
v.put(w, [1, 1, 1, 1]); v.put(a, [1, 1, 1, 1])
g = v.new_graph(z); v.build_forward_expand(g, r)
answer(v.graph_compute(s[1], g))
"""
    strict, err = run_client(build, code.format(1))
    lax, _ = run_client(build, code.format(0))
    assert strict == -1
    assert "VDEV1: illegal access: 'r' (MUL_MAT) uses 'far', which is in VDEV0" in err
    assert lax == 0


def test_results_do_not_depend_on_threads(build: Build) -> None:
    # A single query over 1024 cells is what the CPU backend cuts into one partial sum per thread.
    code = """
import random
v.set_up(devices=1, threads={0})
s = v.dev_init(v.device(0), None)
x = v.context()
k = v.tensor(x, "k", 64, 1024, 1); w = v.tensor(x, "v", 64, 1024, 1); q = v.tensor(x, "q", 64, 1, 1)
m = v.tensor(x, "m", 64, 37)
r = v.mul_mat(x, m, v.flash_attn_ext(x, q, k, w, None, 0.125, 0.0, 0.0))
v.alloc_ctx_tensors(x, s)
rng = random.Random(7)
for t in (k, w, q, m):
    v.put(t, [rng.uniform(-1, 1) for _ in range(v.nbytes(t) // 4)])
g = v.new_graph(x); v.build_forward_expand(g, r)
assert v.graph_compute(s, g) == 0
answer(v.fetch(r).hex())
"""
    results = {run_client(build, code.format(threads))[0] for threads in (1, 2, 5)}
    assert len(results) == 1
    assert "ff" * 8 not in results.pop()


def test_host_buffers_are_offered_only_when_asked_for(build: Build) -> None:
    code = """
v.set_up(devices=2, host_buffer={0})
h = [v.dev_host_buffer_type(v.device(i)) for i in range(2)]
b = v.buft_alloc_buffer(h[0], 100) if h[0] else None
answer([h[0] == h[1], bool(h[0]), v.buffer_is_host(b) if b else None])
"""
    assert run_client(build, code.format(0))[0] == [True, False, None]
    assert run_client(build, code.format(1))[0] == [True, True, True]


def test_registering_is_idempotent_and_a_new_configuration_replaces_the_old(build: Build) -> None:
    got, _ = run_client(build, """
names = lambda: [v.dev_name(v.dev_get(i)).decode() for i in range(v.dev_count())]
before = names()
v.set_up(devices=2); old = v.device(0)
a = names()
assert v.register() is None and v.register() is None
b = names()
v.set_up(devices=1, names=b"X"); c_ = names()
assert v.register() is None
d = names()
v.unregister(); v.unregister()
answer(dict(before=before, a=a, b=b, c=c_, d=d, e=names(), old=v.dev_name(old).decode()))
""")  # fmt: skip
    before = got["before"]
    assert got["a"] == got["c"] == got["e"] == before
    assert got["b"] == [*before, "VDEV0", "VDEV1"]
    assert got["d"] == [*before, "X"]
    assert got["old"] == "VDEV0"


def test_both_ways_of_loading_register_once(build: Build) -> None:
    devices = VirtualDeviceConfig(count=3, names=("é", "b b", "c"))
    found = seen_devices(build, program_environment(find_vdev(build), devices))
    assert [one.name for one in found if one.backend == "VDEV"] == ["é", "b b", "c"]
    assert {one.type for one in found if one.backend == "VDEV"} == {"GPU"}


@pytest.mark.patch("log-at-exit")
def test_a_program_that_never_loads_backends_has_the_devices(build: Build) -> None:
    done = run(build, "test-llama-archs", "-s", "1", "-a", "llama", devices=VirtualDeviceConfig(count=2))
    rows = [line for line in done.stdout.splitlines() if re.search(r"\bMeta\|", line)]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rows) == 2
    assert all("OK" in row and "nan" not in row.lower() for row in rows)


def test_a_shell_under_the_preload_works_and_makes_no_devices(build: Build, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    env = program_environment(find_vdev(build), VirtualDeviceConfig(ledger=ledger, faults=("alloc",)))
    done = subprocess.run(
        ["/bin/sh", "-c", "echo fine"], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
    assert not ledger.exists()


def test_impossible_environment_stops_the_program_with_a_message(build: Build) -> None:
    env = {**program_environment(find_vdev(build), DEFAULTS), "PYGGML_VDEV_MEMORY": "lots"}
    done = subprocess.run(
        [find_program(build, "test-llama-archs"), "-s", "1", "-a", "llama"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert 'PYGGML_VDEV_MEMORY is "lots": a size such as 512M is expected' in done.stderr


def test_the_environment_says_the_same_to_both_sides(build: Build) -> None:
    devices = VirtualDeviceConfig(count=2, memory=3 << 20, alignment=256, max_buffer=1 << 20, native_2d=False)
    got, _ = run_client(build, """
assert v.configure_from_environment() is None
t = v.dev_buffer_type(v.device(0))
free, total = c.c_size_t(), c.c_size_t()
v.dev_memory(v.device(0), c.byref(free), c.byref(total))
answer([v.count(), total.value, v.buft_get_alignment(t), v.buft_get_max_size(t)])
""", devices.environment())  # fmt: skip
    assert got == [2, 3 << 20, 256, 1 << 20]


def test_the_ledger_file_is_there_after_an_abort(build: Build, tmp_path: Path) -> None:
    file = tmp_path / "l"
    devices = VirtualDeviceConfig(count=2, memory=1 << 20, ledger=file)
    done = run(build, "test-llama-archs", "-s", "1", "-a", "llama", devices=devices)
    ledger = Ledger.read(file)
    assert done.returncode != 0
    assert ledger.filter(kind="alloc", refused=True).records()[0].device == "VDEV0"


def test_the_ledger_names_the_split_of_every_input(build: Build, tmp_path: Path) -> None:
    file = tmp_path / "l"
    run(
        build, "test-llama-archs", "-s", "1", "-a", "llama", devices=VirtualDeviceConfig(count=2, ledger=file)
    )
    ledger = Ledger.read(file)
    computes = ledger.filter(kind="compute", device="VDEV0")
    assert computes.column("split").tolist() == list(range(len(computes)))
    assert ledger.column("sequence").tolist() == list(range(len(ledger)))
    copies = ledger.filter(kind="cpy")
    assert len(copies) > 0
    assert all(record.peer != record.device for record in copies)


def test_the_library_is_compiled_again_only_when_something_changed(build: Build, tmp_path: Path) -> None:
    said: list[str] = []
    library = compile_vdev(build, directory=tmp_path / "py thon", say=said.append)
    before = library.stat()
    assert compile_vdev(build, directory=tmp_path / "py thon", say=said.append) == library
    assert said == ["compiling the virtual devices"]
    assert library.stat().st_mtime_ns == before.st_mtime_ns
    # A path with a space cannot be written into LD_PRELOAD as it is.
    env = program_environment(library, VirtualDeviceConfig(count=1))
    done = subprocess.run(
        [find_program(build, "test-llama-archs"), "-s", "1", "-a", "llama"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "virtual device 0" in done.stdout


def test_another_trees_headers_are_no_reason_to_compile_again(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build named with --against stays as it is, although the work tree holds other headers, older than it."""
    from pyggml.native.preprocess import source_of

    source = tmp_path / "tree"
    for part in ("ggml/include", "ggml/src"):
        shutil.copytree(source_of(build) / part, source / part, ignore=lambda _, names: [
            name for name in names if not name.endswith(".h")
        ])  # fmt: skip
    other = replace(build, directory=tmp_path / "other")
    other.directory.mkdir()
    (other.directory / "bin").symlink_to(build.bin_dir)
    monkeypatch.setattr("pyggml.native.vdev_library.source_of", lambda build: source)
    library = compile_vdev(other, source)
    before = library.stat()
    header = source / "ggml/src/ggml-backend-impl.h"
    header.write_text(header.read_text() + "// another patch\n")
    os.utime(header, ns=(0, 0))
    said: list[str] = []
    assert find_vdev(other, said.append) == library
    assert (said, library.stat().st_mtime_ns) == ([], before.st_mtime_ns)


def test_a_compiler_error_is_shown_and_the_old_library_stays(build: Build, tmp_path: Path) -> None:
    from pyggml.native.preprocess import source_of

    source = tmp_path / "tree"
    for part in ("ggml/include", "ggml/src"):
        (source / part).mkdir(parents=True)
        for header in (source_of(build) / part).glob("*.h"):
            shutil.copy(header, source / part)
    library = tmp_path / "python" / "libpyggml-vdev.so"
    library.parent.mkdir()
    library.write_bytes(b"old")
    header = source / "ggml/src/ggml-backend-impl.h"
    header.write_text(header.read_text().replace("(*get_base)", "(*get_start)"))
    with pytest.raises(PyggmlError, match="get_base"):
        compile_vdev(build, source, library.parent)
    assert [path.name for path in library.parent.iterdir()] == [library.name]
    assert library.read_bytes() == b"old"


def test_a_static_build_is_refused(build: Build, tmp_path: Path) -> None:
    from pyggml.native.preprocess import source_of

    with pytest.raises(PyggmlError, match=r"has no libggml\.so: virtual devices need shared libraries"):
        compile_vdev(replace(build, directory=tmp_path), source_of(build), tmp_path / "python")


def test_our_own_code_compiles_without_warnings(build: Build) -> None:
    from pyggml.native.preprocess import source_of

    source = source_of(build)
    done = subprocess.run(
        ["c++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror",
         "-isystem", source / "ggml/include", "-isystem", source / "ggml/src", *sorted(SOURCES.glob("*.cpp"))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    header = subprocess.run(
        ["cc", "-std=c99", "-Wall", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c", SOURCES / "pyggml-vdev.h"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert header.returncode == 0, header.stderr


def test_a_death_by_signal_is_told_apart_from_an_exit_status(tmp_path: Path) -> None:
    program = tmp_path / "p"
    program.write_text("#!/bin/sh\nkill -ABRT $$\n")
    program.chmod(0o755)
    assert run_attached([program], os.environ) == -signal.SIGABRT
    program.write_text("#!/bin/sh\nexit $1\n")
    assert run_attached([program, "7"], os.environ) == 7


def invoke(build: Build, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    from pyggml.cli import devices as devices_cli
    from pyggml.cli import run as run_cli

    monkeypatch.setattr(run_cli, "active", lambda variant: build)
    command = {"run": run_cli.run, "devices": devices_cli.devices}[arguments[0]]
    return CliRunner().invoke(command, arguments[1:])


def test_run_passes_the_exit_status_on(build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ledger = tmp_path / "l"
    done = invoke(
        build, monkeypatch, "run", "--devices", "1", "--ledger", str(ledger), "--",
        "test-llama-archs", "-s", "1", "-a", "llama",
    )  # fmt: skip
    assert done.exit_code == 0
    assert f"{len(Ledger.read(ledger))} records in" in done.stderr.replace(",", "")
    broken = invoke(
        build, monkeypatch, "run", "--device-memory", "1M", "--", "test-llama-archs", "-s", "1", "-a", "llama"
    )
    assert broken.exit_code != 0


def test_a_ledger_on_a_full_disk_is_said_once(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Whoever runs this as root must not lose /dev/full if it fails.
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: pytest.fail("a device would be removed"))
    if not Path("/dev/full").is_char_device():
        pytest.skip("this system has no /dev/full")
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    done = invoke(
        build, monkeypatch, "run", "--devices", "1", "--ledger", str(link), "--",
        "test-llama-archs", "-s", "1", "-a", "llama",
    )  # fmt: skip
    assert done.exit_code == 0
    assert link.is_char_device()
    assert capfd.readouterr().err.count("cannot write the ledger: No space left on device") == 1


def test_run_names_the_programs_that_there_are(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    done = invoke(build, monkeypatch, "run", "--", "nosuch")
    assert isinstance(done.exception, PyggmlError)
    assert "has no program nosuch" in done.exception.message
    assert "test-llama-archs" in str(done.exception.hint)
    near = invoke(build, monkeypatch, "run", "--", "test-lama-archs")
    assert str(getattr(near.exception, "hint", "")).startswith("Did you mean 'test-llama-archs'? It has: ")


def test_devices_lists_the_registry(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    done = invoke(build, monkeypatch, "devices", "--devices", "2", "--json")
    found = json.loads(done.stdout)["devices"]
    assert [one["name"] for one in found if one["type"] == "GPU" and one["backend"] == "VDEV"] == [
        "VDEV0",
        "VDEV1",
    ]
    assert any(one["type"] == "CPU" for one in found)
