from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from pyggml.upstream import snapshot
from tests.upstream.helpers import (
    GOOD,
    archive_pin,
    fetch,
    leftovers,
    member,
    members_of,
    on_disk,
    tar_bytes,
    tree_id,
    write_project,
)

NO_DOCS = {path: value for path, value in GOOD.items() if not path.startswith("docs/")}
GOOD_MEMBER = member("up/good")

HOSTILE: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "absolute": [member("/up/evil")],
    "drive": [member("C:\\evil")],
    "dotdot": [member("up/../../evil")],
    "dotdot-backslash": [member("up/..\\evil")],
    "dot-git-file-deep": [member("up/sub/.git")],
    "dot-git-dir": [member("up/.git/config")],
    "dot-git-case": [member("up/.GiT/config")],
    "dot-git-ntfs-short": [member("up/git~1/config")],
    "dot-git-ntfs-dots": [member("up/.git. ./config")],
    "dot-git-ntfs-stream": [member("up/.git::$INDEX_ALLOCATION/config")],
    "dot-git-backslash": [member("up/.git\\config")],
    "dot-git-hfs": [member("up/.g\u200cit/config")],
    "link-absolute": [member("up/evil", b"/etc/passwd", mode="120000")],
    "link-out": [member("up/a/evil", b"../../x", mode="120000")],
    "link-out-through-link": [
        member("up/here", b".", mode="120000"),
        member("up/evil", b"here/../x", mode="120000"),
    ],
    "link-into-git": [member("up/evil", b".git/hooks", mode="120000")],
    "link-gitmodules": [member("up/.gitmodules", b"good", mode="120000")],
    "link-empty": [member("up/evil", b"", mode="120000")],
    "hardlink-out": [member("up/evil", b"", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "hardlink-dotdot": [member("up/evil", b"", type=tarfile.LNKTYPE, linkname="up/../../x")],
    "hardlink-other-top": [member("up/evil", b"", type=tarfile.LNKTYPE, linkname="etc/passwd")],
    "hardlink-later": [member("up/evil", b"", type=tarfile.LNKTYPE, linkname="up/zzz"), member("up/zzz")],
    "hardlink-self": [member("up/evil", b"", type=tarfile.LNKTYPE, linkname="up/evil")],
    "char-device": [member("up/evil", b"", type=tarfile.CHRTYPE)],
    "block-device": [member("up/evil", b"", type=tarfile.BLKTYPE)],
    "fifo": [member("up/evil", b"", type=tarfile.FIFOTYPE)],
    "duplicate": [member("up/evil"), member("up/evil", b"y")],
    "duplicate-spelling": [member("up/evil"), member("up/./evil", b"y")],
    "file-then-directory": [member("up/evil"), member("up/evil/inner")],
    "directory-then-file": [member("up/evil/inner"), member("up/evil")],
    "link-then-directory": [member("up/evil", b"good", mode="120000"), member("up/evil/inner")],
    "directory-entry-then-file": [member("up/evil", b"", type=tarfile.DIRTYPE), member("up/evil")],
    "endless-name": [member("up/" + "evil/" * 1000)],
    "only-stray-git": [],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archive_is_refused_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    members = HOSTILE[kind]
    archive = tmp_path / "evil.tar.gz"
    archive.write_bytes(tar_bytes([GOOD_MEMBER, *members] if members else [member("up/.git")]))
    project = write_project(tmp_path / "project", one=archive_pin(archive))
    with pytest.raises(PyggmlError) as error:
        fetch(project)
    assert "evil.tar.gz" in error.value.message
    if members:
        assert "refused" in error.value.message
        named = [snapshot.printable(os.fsencode(info.name)) for info, _ in members]
        named += [name[:97] for name in named if len(name) > snapshot.MAX_PATH_BYTES]
        assert any(
            name in error.value.message or name.removeprefix("up/") in error.value.message for name in named
        )
    assert "\n" not in error.value.message
    assert sorted(path.name for path in (project.root / "vendor").iterdir()) == ["pins.toml"]
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(("limit", "value"), [("MAX_BYTES", 10), ("MAX_MEMBERS", 2)])
def test_archive_beyond_the_limits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(snapshot, limit, value)
    archive = tmp_path / "big.tar.gz"
    archive.write_bytes(tar_bytes([member(f"up/f{n}", b"12345678") for n in range(3)]))
    with pytest.raises(PyggmlError, match="more than"):
        fetch(write_project(tmp_path / "project", one=archive_pin(archive)))


def test_header_of_absurd_size_is_refused_unread(tmp_path: Path) -> None:
    info = tarfile.TarInfo("up/x")
    info.type = tarfile.XHDTYPE
    info.size = 8 << 30
    archive = tmp_path / "header.tar"
    archive.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10240)
    with pytest.raises(PyggmlError, match="unreasonably large"):
        fetch(write_project(tmp_path / "project", one=archive_pin(archive)))


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
def test_archive_cut_off_anywhere_is_an_error(tmp_path: Path, compression: str) -> None:
    data = tar_bytes([member(f"up/file{n}", os.urandom(700)) for n in range(6)], compression)
    # A plain tar is complete with its end mark: two blocks of zeros, before the padding.
    end = 6 * 1536 + 512 if not compression else len(data) - 9
    for cut in sorted(
        {end * part // 12 for part in range(1, 12)} | {512 * 3, 512 * 6 - 100 if compression else 512 * 6}
    ):
        if cut >= len(data):
            continue
        archive = tmp_path / f"cut{cut}"
        archive.write_bytes(data[:cut])
        with pytest.raises(PyggmlError, match=r"damaged or cut off|cut off|not an archive|no files"):
            fetch(write_project(tmp_path / f"project{cut}", one=archive_pin(archive)))
        assert leftovers(write_project(tmp_path / f"project{cut}", one=archive_pin(archive))) == []


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
def test_every_tar_compression(tmp_path: Path, compression: str) -> None:
    archive = tmp_path / "no-suffix-needed"
    archive.write_bytes(tar_bytes(members_of(GOOD, "./up/"), compression))
    project = write_project(tmp_path / "project", one=archive_pin(archive, tree_id(GOOD), exclude=["docs"]))
    fetch(project)
    assert on_disk(project) == NO_DOCS


def test_tar_without_a_single_top_directory(tmp_path: Path) -> None:
    archive = tmp_path / "flat.tar.gz"
    archive.write_bytes(tar_bytes(members_of(GOOD, "")))
    project = write_project(tmp_path / "project", one=archive_pin(archive, tree_id(GOOD), exclude=["docs"]))
    fetch(project)
    assert on_disk(project) == NO_DOCS
    assert not list((project.root / "vendor" / "up" / ".git" / "objects" / "pack").glob("tmp_*"))


def test_subdir_that_is_not_there(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tar_bytes([GOOD_MEMBER]))
    with pytest.raises(PyggmlError, match="no files in its directory gone"):
        fetch(write_project(tmp_path / "project", one=archive_pin(archive, subdir="gone")))


def test_links_inside_the_tree_stay(tmp_path: Path) -> None:
    members = [
        member("up/a/file", b"data\n"),
        member("up/a/hard", b"", mode="100755", type=tarfile.LNKTYPE, linkname="up/a/file"),
        member("up/a/up-and-down", b"../a/./file", mode="120000"),
        member("up/loop", b"loop", mode="120000"),
        member("up/dangling", b"not/there", mode="120000"),
    ]
    archive = tmp_path / "links.tar.gz"
    archive.write_bytes(tar_bytes(members))
    files = {
        "a/file": ("100644", b"data\n"),
        "a/hard": ("100755", b"data\n"),
        "a/up-and-down": ("120000", b"../a/./file"),
        "loop": ("120000", b"loop"),
        "dangling": ("120000", b"not/there"),
    }
    project = write_project(tmp_path / "project", one=archive_pin(archive, tree_id(files)))
    fetch(project)
    assert on_disk(project) == files


def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"latin\xe4")
    archive = tmp_path / "latin.tar.gz"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(member(f"up/{name}", b"x\n")[0], io.BytesIO(b"x\n"))
    archive.write_bytes(out.getvalue())
    files = {name: ("100644", b"x\n")}
    project = write_project(tmp_path / "project", one=archive_pin(archive, tree_id(files)))
    fetch(project)
    assert on_disk(project) == files


def zip_bytes(entries: list[tuple[str, int, bytes]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode, data in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, data)
    return out.getvalue()


def test_zip(tmp_path: Path) -> None:
    entries = [("up/", stat.S_IFDIR | 0o755, b"")]
    entries += [(f"up/{path}", int(mode, 8), data) for path, (mode, data) in GOOD.items()]
    archive = tmp_path / "good.zip"
    archive.write_bytes(zip_bytes(entries))
    project = write_project(tmp_path / "project", one=archive_pin(archive, tree_id(GOOD), exclude=["docs"]))
    fetch(project)
    assert on_disk(project) == NO_DOCS


@pytest.mark.parametrize(
    "entry",
    [
        ("../evil", 0o100644, b"x"),
        ("/evil", 0o100644, b"x"),
        ("up/.git/config", 0o100644, b"x"),
        ("up/evil", 0o120777, b"../../evil"),
        ("up/evil", 0o10644, b""),
        ("up/good", 0o100644, b"twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_zip_is_refused(tmp_path: Path, entry: tuple[str, int, bytes]) -> None:
    archive = tmp_path / "evil.zip"
    archive.write_bytes(zip_bytes([("up/good", 0o100644, b"x"), entry]))
    project = write_project(tmp_path / "project", one=archive_pin(archive))
    with pytest.raises(PyggmlError, match=r"evil\.zip: refused"):
        fetch(project)
    assert leftovers(project) == []


def test_zip_cut_off_or_altered(tmp_path: Path) -> None:
    data = zip_bytes([("up/good", 0o100644, os.urandom(2000))])
    altered = bytearray(data)
    altered[500] ^= 1
    for number, content in enumerate((data[:-10], data[: len(data) // 2], bytes(altered))):
        archive = tmp_path / f"{number}.zip"
        archive.write_bytes(content)
        with pytest.raises(PyggmlError, match="damaged or cut off"):
            fetch(write_project(tmp_path / f"project{number}", one=archive_pin(archive)))


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_wrong_checksum_inside_the_compressed_archive(tmp_path: Path, compression: str) -> None:
    data = bytearray(tar_bytes([member("up/file", os.urandom(3 << 20)), member("up/last")], compression))
    # In each of these formats the checksum of everything is in the last bytes.
    data[-8 if compression == "gz" else -4 if compression == "bz2" else -30] ^= 0x55
    archive = tmp_path / "altered"
    archive.write_bytes(bytes(data))
    with pytest.raises(PyggmlError, match="damaged or cut off"):
        fetch(write_project(tmp_path / "project", one=archive_pin(archive)))


def test_gzip_with_long_padding_but_without_its_last_bytes(tmp_path: Path) -> None:
    data = gzip.compress(tar_bytes([member("up/file")], "") + bytes(4 << 20))
    archive = tmp_path / "cut"
    archive.write_bytes(data[:-5])
    with pytest.raises(PyggmlError, match="damaged or cut off"):
        fetch(write_project(tmp_path / "project", one=archive_pin(archive)))
