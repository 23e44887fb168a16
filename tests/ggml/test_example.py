"""The example in examples/, and tensors in files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import Context, cpu, read_gguf, write_gguf

from .conftest import MakeDevices, data_for

pytestmark = pytest.mark.native

EXAMPLE = Path(__file__).parents[2] / "examples" / "split_matmul.py"


def test_the_example_runs_in_at_most_25_lines_and_agrees_with_numpy() -> None:
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 25
    done = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=False, cwd=EXAMPLE.parent
    )
    assert done.returncode == 0, done.stderr
    difference, moved = done.stdout.splitlines()
    assert float(difference.rpartition(" ")[2]) < 1e-4
    # Weights by halves of columns and rows, the input to each device, sums by a butterfly, the result back.
    expected = {"set": 4 * 2048 + 4 * 640, "set_2d": 4 * 3072, "cpy": 4 * 2 * 960, "get": 960}
    found = {kind: int(number) for kind, number in re.findall(r"'(\w+)': (\d+)", moved)}
    assert found == expected


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "i32", "q8_0", "q4_0"])
def test_a_file_keeps_every_byte(kind: str, tmp_path: Path, devices: MakeDevices, rng: Any) -> None:
    written, read = Context(), Context()
    tensor = written.tensor(kind, (3, 64), "blk.0.weight")
    written.allocate(cpu())
    data = data_for(tensor, rng)
    tensor.set(data)
    write_gguf(tmp_path / "one.gguf", {"blk.0.weight": tensor})
    found = read_gguf(tmp_path / "one.gguf", read, devices(1)[0])["blk.0.weight"]
    assert (found.type, found.shape, found.name) == (tensor.type, (3, 64), "blk.0.weight")
    assert found.numpy().tobytes() == data.tobytes()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\3\0\0\0" + b"\xff" * 100, b"no such thing" * 100])
def test_a_broken_file_is_an_exception(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(PyggmlError, match=r"broken\.gguf cannot be read as GGUF"):
        read_gguf(path, Context(), cpu())
    with pytest.raises(PyggmlError, match="cannot be read"):
        read_gguf(tmp_path / "missing.gguf", Context(), cpu())


def test_a_file_that_cannot_be_written_is_an_exception(tmp_path: Path) -> None:
    context = Context()
    tensor = context.tensor("f32", 3, "x")
    context.allocate(cpu())
    tensor.set(np.zeros(3, np.float32))
    with pytest.raises(PyggmlError, match="cannot write"):
        write_gguf(tmp_path / "none" / "one.gguf", {"x": tensor})
