"""What a user wants written is written where they said: devices and pipes are opened, links are followed."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from pyggml.files import write_output


def test_a_regular_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_bytes(b"old")
    write_output(file, b"new")
    assert file.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed(tmp_path: Path, there: bool) -> None:
    real = tmp_path / "far" / "real.json"
    real.parent.mkdir()
    if there:
        real.write_bytes(b"old")
    link = tmp_path / "link.json"
    link.symlink_to("far/real.json")
    write_output(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_pipe_is_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, b"through the pipe")
    reader.join(10)
    assert got == [b"through the pipe"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("link", [False, True])
def test_a_full_device_is_an_error_and_stays_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    # Whoever runs this as root must not lose /dev/full if it fails.
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("a device would be replaced"))
    file = Path("/dev/full")
    if not file.is_char_device():
        pytest.skip("this system has no /dev/full")
    if link:
        (tmp_path / "link").symlink_to(file)
        file = tmp_path / "link"
    with pytest.raises(PyggmlError, match=rf"cannot write {file}: {os.strerror(errno.ENOSPC)}"):
        write_output(file, b"x")


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.json"
    file.write_bytes(b"old")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PyggmlError, match=r"cannot write .*out.json: No space left"):
        write_output(file, b"new")
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_a_link_to_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(PyggmlError, match=r"cannot write .*loop: "):
        write_output(tmp_path / "loop", b"x")


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PyggmlError, match=r"cannot write .*: Is a directory"):
        write_output(tmp_path, b"x")
