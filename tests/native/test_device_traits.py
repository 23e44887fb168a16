"""Devices that differ: the text that describes them, what ggml sees of it, and what is refused."""

from __future__ import annotations

import pytest

from pyggml.builder.record import Build
from pyggml.errors import UsageError
from pyggml.native.device_traits import DeviceTraits, check_traits, parse_traits
from pyggml.native.vdev_config import VirtualDeviceConfig
from tests.native.vdev_client import run_client

WRONG = {
    "memory=1G": "do not begin with a device and a colon",
    "x:memory=1G": "do not begin with a device",
    "-1:memory=1G": "do not begin with a device",
    "٣:memory=1G": "do not begin with a device",
    "99999999999999999999:memory=1G": "do not begin with a device",
    "0:": "'' is not KEY=VALUE",
    "0:memory": "'memory' is not KEY=VALUE",
    "0:memory=1G,": "'' is not KEY=VALUE",
    "0:colour=red": "there is no trait 'colour'",
    "0:Memory=1G": "there is no trait 'Memory'",
    "0:memory=": "memory: '' is not a size",
    "0:memory=1X": "memory: '1X' is not a size",
    "0:memory=0": "memory=0 is impossible",
    "0:memory=9999999T": "memory=.* is impossible",
    "0:max-buffer=0": "max-buffer=0 is impossible",
    "0:alignment=48": "alignment of 48 bytes",
    "0:alignment=8": "alignment of 8 bytes",
    "0:pad=100": "cannot be padded to 100 elements",
    "0:pad=2097152": "cannot be padded to 2097152 elements",
    "0:pad=-256": "'-256' is not a whole number",
    "0:2d=maybe": "2d: 'maybe' is no switch",
    "0:async=off,events=on": "events need a device that is asynchronous",
    "0:refuse=": "'' is not an operation to refuse",
    "0:refuse=GELU++SILU": "'' is not an operation",
    "0:refuse=mul_mat": "'mul_mat' is not an operation",
    "0:refuse=MUL_MAT/": "'MUL_MAT/' is not an operation",
    "0:memory=1G,memory=2G": "'memory' is given twice",
    "0:memory=1G;0:pad=512": "device 0 is described twice",
    "*:pad=0;*:pad=512": "all devices are described twice",
    "2:memory=1G": "there is no device 2",
    "0:memory=1G;": "'' do not begin with a device",
}
ONLY_THE_BUILD_KNOWS = {
    "0:refuse=MULMAT": 'a device cannot refuse the operation "MULMAT"',
    "0:refuse=VIEW": 'a device cannot refuse the operation "VIEW"',
    "1:refuse=MUL_MAT/q9_9": 'there is no type "q9_9"',
    "1:memory=1G,in-use=1G": "1073741824 of 1073741824 bytes of memory are in use",
    "1:in-use=9G": "bytes of memory are in use",
}


@pytest.mark.parametrize("text", WRONG)
def test_the_wrong_part_is_named_and_there_is_a_way_out(text: str) -> None:
    with pytest.raises(UsageError, match=WRONG[text]) as caught:
        check_traits(parse_traits(text), 2)
    assert str(caught.value).count("\n") <= 1


@pytest.mark.native
def test_the_library_refuses_all_that_python_does_and_names_what_only_it_knows(build: Build) -> None:
    texts = [*WRONG, *ONLY_THE_BUILD_KNOWS]
    got, _ = run_client(build, f"answer([v.set_up(devices=2, traits=text.encode()) for text in {texts!r}])")
    answers = dict(zip(texts, got, strict=True))
    assert [text for text, error in answers.items() if error is None or error.count("\n") != 1] == []
    assert all(words in answers[text] for text, words in ONLY_THE_BUILD_KNOWS.items())
    assert all(text.split(";")[-1] in answers[text] for text in texts)


def test_traits_are_written_as_they_are_read() -> None:
    text = "1:memory=4096,in-use=0,alignment=256,max-buffer=1024,pad=0,2d=off,async=on,events=off,"
    text += "refuse=MUL_MAT/q4_0+/bf16"
    (traits,) = parse_traits(text)
    assert traits == DeviceTraits(1, 4096, 0, 256, 1024, 0, False, True, False, ("MUL_MAT/q4_0", "/bf16"))
    assert str(traits) == text
    assert parse_traits("") == ()
    assert parse_traits("*:memory=1G;0:pad=512") == (
        DeviceTraits(memory=1 << 30),
        DeviceTraits(0, row_padding=512),
    )
    with pytest.raises(UsageError, match="say nothing"):
        VirtualDeviceConfig(2, traits=(DeviceTraits(1),))


@pytest.mark.native
def test_padding_is_zero_and_must_be_in_the_buffer(build: Build) -> None:
    # The meta backend places slices by itself, past the check of ggml_backend_tensor_alloc: so does this, by writing
    # tensor->buffer and tensor->data (bytes 8 and 248 of a ggml_tensor).
    code = """
import os
v.set_up(devices=1, alignment=16, traits=b"0:pad=512")
type_, stream = v.dev_buffer_type(v.device(0)), v.dev_init(v.device(0), None)
x = v.context(); w = v.base.ggml_new_tensor_1d(x, 2, 64)
data = v.buffer_get_base(v.alloc_ctx_tensors(x, stream))
bytes_ = [sorted(set(c.string_at(data + at, size))) for at, size in ((0, 36), (36, 252))]
init = v.base.ggml_backend_buffer_init_tensor; init.argtypes = [c.c_void_p] * 2
def ends(size, offset):
    buffer, t = v.buft_alloc_buffer(type_, size), v.base.ggml_new_tensor_1d(v.context(), 2, 64)
    v.set_name(t, b"t"); c.c_void_p.from_address(t + 8).value = buffer
    c.c_void_p.from_address(t + 248).value = v.buffer_get_base(buffer) + offset
    pid = os.fork()
    if pid == 0:
        init(buffer, t); os._exit(0)
    return os.waitpid(pid, 0)[1]
answer([bytes_, [ends(size, offset) for size, offset in ((288, 0), (287, 0), (320, 8))]])
"""
    got, err = run_client(build, code)
    assert got == [[[0xFF], [0]], [0, 6, 6]]
    assert (
        "VDEV0: illegal access: tensor 't', offset 36, 252 bytes lie outside its buffer of 287 bytes" in err
    )
    assert "VDEV0: illegal access: tensor 't' is not aligned to 16 bytes" in err
