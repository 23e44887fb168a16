"""Where the programs and libraries of the project's build look for others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyggml.native.load import active_build
from pyggml.native.programs import find_program

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(sys.platform != "linux", reason="asks the dynamic linker of Linux"),
]


def test_nothing_comes_from_the_current_directory(tmp_path: Path) -> None:
    build = active_build(Path(__file__).parent)
    program = find_program(build, "llama-bench")
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    traced = subprocess.run(
        [program], env={**env, "LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, check=True
    ).stdout
    found = {name: Path(path) for name, path in re.findall(r"^\s*(\S+) => (/.+) \(0x", traced, re.MULTILINE)}
    ours = {name for name, path in found.items() if path.parent == build.bin_dir}
    assert {"libggml-base.so.0", "libllama.so.0"} <= ours
    assert "libc.so.6" in found.keys() - ours
    for name in found:
        (tmp_path / name).write_bytes(b"")
    done = subprocess.run(
        [program, "--help"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
