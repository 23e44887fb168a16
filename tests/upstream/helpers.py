"""Small upstreams, and the git objects expected from them, computed without pyggml and without git."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyggml.project import Project
from pyggml.upstream import store
from pyggml.upstream.pins import read_pins
from tests.command_line import run_here

Files = Mapping[str, tuple[str, bytes]]

GOOD: Files = {
    "CMakeLists.txt": ("100644", b"project(x)\n"),
    "src/run.sh": ("100755", b"#!/bin/sh\nexit 0\n"),
    "src/link": ("120000", b"../CMakeLists.txt"),
    "src/crlf.txt": ("100644", b"one\r\ntwo\r\n"),
    ".gitattributes": ("100644", b"*.txt text\n*.sh text eol=crlf\n"),
    ".gitignore": ("100644", b"*.log\n"),
    "kept.log": ("100644", b"ignored by name, but part of the snapshot\n"),
    "docs/guide.md": ("100644", b"left out by exclude\n"),
    "docsier/file": ("100644", b"not left out: only shares a prefix\n"),
    "sp ace/\u00e4\u00f6\u4e2d.txt": ("100644", "\u00fc\n".encode()),
    'quo"te/new\nline\\back\ttab': ("100644", b"\0\xff binary"),
    "empty": ("100644", b""),
}
EXCLUDE = ["docs"]


def sha1_object(kind: str, data: bytes) -> bytes:
    return hashlib.sha1(b"%b %d\0%b" % (kind.encode(), len(data), data), usedforsecurity=False).digest()


def tree_id(files: Files, exclude: list[str] = EXCLUDE) -> str:
    """The git tree id of `files`, computed from the definition of the object format."""
    nested: dict[bytes, Any] = {}
    for path, (mode, data) in files.items():
        if any(path == out or path.startswith(out + "/") for out in exclude):
            continue
        *above, name = os.fsencode(path).split(b"/")
        level = nested
        for part in above:
            level = level.setdefault(part, {})
        level[name] = (mode.encode(), sha1_object("blob", data))

    def digest(level: dict[bytes, Any]) -> bytes:
        rows = []
        for name, value in level.items():
            if isinstance(value, dict):
                rows.append((name + b"/", b"40000 %b\0%b" % (name, digest(value))))
            else:
                rows.append((name, b"%b %b\0%b" % (value[0], name, value[1])))
        return sha1_object("tree", b"".join(row for _, row in sorted(rows)))

    return digest(nested).hex()


def member(
    name: str, data: bytes = b"x\n", *, mode: str = "100644", **fields: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode = 0o755 if mode == "100755" else 0o644
    if mode == "120000":
        info.type, info.linkname, data = tarfile.SYMTYPE, os.fsdecode(data), b""
    for key, value in fields.items():
        setattr(info, key, value)
    info.size = len(data)
    return info, data


def tar_bytes(members: list[tuple[tarfile.TarInfo, bytes]], compression: str = "gz") -> bytes:
    out = io.BytesIO()
    mode = "w" if compression == "gz" else f"w:{compression}"
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    # Without the time that `tarfile` would write into the gzip header.
    return gzip.compress(out.getvalue(), mtime=0) if compression == "gz" else out.getvalue()


def members_of(files: Files, top: str = "up-1.0/inner/") -> list[tuple[tarfile.TarInfo, bytes]]:
    return [member(f"{top}{path}", data, mode=mode) for path, (mode, data) in files.items()]


class Upstream:
    """An archive `up-1.0.tar.gz` with the files of interest in its directory `inner`."""

    def __init__(
        self, folder: Path, files: Files, extra: list[tuple[tarfile.TarInfo, bytes]] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files = files
        self.path = folder / "up-1.0.tar.gz"
        around = [
            member("up-1.0/PKG-INFO"),
            member("up-1.0/.git/config", b"a whole repository that must not matter\n"),
            member("up-1.0/inner/.git", b"gitdir: ../.git/modules/inner\n"),
            member("up-1.0/odd", type=tarfile.FIFOTYPE, data=b""),
        ]
        self.path.write_bytes(tar_bytes([*around, *members_of(files), *(extra or [])]))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def pin(self, **changes: Any) -> dict[str, Any]:
        pin = archive_pin(self.path, tree_id(self.files), subdir="inner", exclude=EXCLUDE)
        return {**pin, **changes}


def archive_pin(
    path: Path, tree: str = "0" * 40, *, subdir: str = "", exclude: list[str] | None = None
) -> dict[str, Any]:
    source = {"kind": "archive", "path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    if subdir:
        source["subdir"] = subdir
    return {"tree": tree, "exclude": exclude or [], "source": source}


def sdist_pin(sha256: str, tree: str, file: str = "up-1.0.tar.gz") -> dict[str, Any]:
    source = {
        "kind": "sdist",
        "project": "up",
        "version": "1.0",
        "file": file,
        "sha256": sha256,
        "subdir": "inner",
    }
    return {"tree": tree, "exclude": EXCLUDE, "source": source}


def write_project(root: Path, **pins: dict[str, Any]) -> Project:
    """A project with these pins; the first one is the default."""
    (root / "patches").mkdir(parents=True, exist_ok=True)
    (root / "vendor").mkdir(exist_ok=True)
    lines = [
        'upstream = "up"  # a comment that stays',
        *([f'default = "{next(iter(pins))}"'] if pins else []),
    ]
    for name, pin in pins.items():
        lines += ["", f"[pin.{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in pin.items() if key != "source"]
        lines += [f"[pin.{name}.source]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in pin["source"].items()]
    (root / "vendor" / "pins.toml").write_text("\n".join(lines) + "\n", "utf-8")
    return Project(root)


def fetch(project: Project, name: str | None = None) -> store.FetchResult:
    pins = read_pins(project)
    with project.lock("test"):
        return store.fetch(project, pins, pins.get(name))


def pyggml(project: Project, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process."""
    command = ["--project", str(project.root), *args]
    ended = run_here(*command, env=env)
    return subprocess.CompletedProcess(command, ended.code, ended.out, ended.err)


def on_disk(project: Project) -> dict[str, tuple[str, bytes]]:
    """The contents of the work tree as `Files`."""
    root = project.root / "vendor" / "up"
    files: dict[str, tuple[str, bytes]] = {}
    for path in root.rglob("*"):
        inner = path.relative_to(root).as_posix()
        if inner.split("/")[0] == ".git":
            continue
        if path.is_symlink():
            files[inner] = ("120000", os.fsencode(os.readlink(path)))  # noqa: PTH115 - unchanged
        elif path.is_file():
            files[inner] = ("100755" if path.stat().st_mode & 0o100 else "100644", path.read_bytes())
    return files


def leftovers(project: Project) -> list[str]:
    """Everything in `vendor/` except the pins and the work tree."""
    return sorted(p.name for p in (project.root / "vendor").iterdir() if p.name not in ("pins.toml", "up"))


def git(where: Path, *args: str) -> str:
    """Run git with no configuration except the repository's own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    for role in ("AUTHOR", "COMMITTER"):
        env.update({f"GIT_{role}_NAME": "t", f"GIT_{role}_EMAIL": "t@example.org"})
    done = subprocess.run(["git", "-C", str(where), *args], capture_output=True, check=True, env=env)
    return done.stdout.decode().strip()
