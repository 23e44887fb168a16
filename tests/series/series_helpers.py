"""A small upstream, a project that pins it, and the tool as a user would call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pyggml.project import Project
from pyggml.upstream.new_pin import NewPin, add_pin, directory_source
from pyggml.upstream.pins import read_pins
from pyggml.upstream.store import repository
from tests.command_line import run_here

SCALE = "".join(f"line {n}\n" for n in range(1, 41))
TWINS = "".join(f"static int twin_{name}(void) {{\n    int x = 0;\n    return x;\n}}\n\n" for name in "abcd")
UPSTREAM = {
    "src/scale.c": SCALE,
    "src/twins.c": "".join("{\n    int x = 0;\n    x += 1;\n    return x;\n}\n\n" for _ in range(4)),
    "src/named.c": TWINS,
    "README.md": "upstream\n",
    "run.sh": "#!/bin/sh\nexit 0\n",
    ".gitignore": "*.o\n",
}
AUTHOR = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}


@dataclass(frozen=True)
class Done:
    """What a run of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


@dataclass(frozen=True)
class Sandbox:
    """A project on a small upstream, with the tool and plain git at hand."""

    project: Project

    @property
    def root(self) -> Path:
        return self.project.root

    @property
    def tree(self) -> Path:
        return repository(self.project, read_pins(self.project)).work_tree

    @property
    def patches(self) -> Path:
        return self.project.patches_dir / "one"

    def pyggml(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Done:
        """Run `pyggml *args` in this process."""
        ended = run_here(*args, cwd=cwd or self.root, env=env)
        return Done(ended.code, ended.out, ended.err)

    def start_pyggml(self, *args: str, env: dict[str, str] | None = None) -> Done:
        """Run `pyggml *args` in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "pyggml", *args],
            cwd=self.root,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="surrogateescape",
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def ok(self, *args: str, **kwargs: object) -> Done:
        """As `pyggml`, which must succeed."""
        done = self.pyggml(*args, **kwargs)
        assert done.code == 0, f"pyggml {' '.join(args)}: exit {done.code}\n{done.out}{done.err}"
        return done

    def refused(self, *args: str, code: int = 1, **kwargs: object) -> str:
        """As `pyggml`, which must fail with `code` and one or two lines, and no traceback."""
        done = self.pyggml(*args, **kwargs)
        assert done.code == code, f"pyggml {' '.join(args)}: exit {done.code}\n{done.out}{done.err}"
        lines = done.err.strip().splitlines()
        assert 1 <= len(lines) <= 2, done.err
        assert "Traceback" not in done.err and "internal error" not in done.err, done.err
        return done.err

    def git(self, *args: str, env: dict[str, str] | None = None) -> str:
        """Plain git in the vendored tree, as the user would run it."""
        done = subprocess.run(
            ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *args],
            cwd=self.tree,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"git {' '.join(args)}: {done.stderr}"
        return done.stdout.removesuffix("\n")

    def write(self, path: str, text: str) -> None:
        target = self.tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")

    def replace(self, path: str, old: str, new: str) -> None:
        target = self.tree / path
        text = target.read_text("utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
        target.write_text(text.replace(old, new), "utf-8")

    def patch(self, name: str, path: str, old: str, new: str, message: str | None = None) -> None:
        """Make a patch of one replacement."""
        self.replace(path, old, new)
        self.ok("patch", "new", name, "-m", message or f"{name} : change {path}\n\nWhy: because.")

    def status(self) -> dict:
        return self.ok("patch", "status", "--json").json

    def files(self) -> dict[str, bytes]:
        """Every patch file and series.toml."""
        return {p.name: p.read_bytes() for p in self.patches.iterdir()} if self.patches.is_dir() else {}

    def state(self) -> tuple[object, ...]:
        """Everything of the user's that a failed command must not change."""
        work = {
            str(p.relative_to(self.tree)): p.read_bytes()
            for p in sorted(self.tree.rglob("*"))
            if p.is_file() and not p.is_symlink() and ".git" not in p.relative_to(self.tree).parts
        }
        return work, self.files(), self.git("rev-parse", "HEAD"), self.git("symbolic-ref", "HEAD")


def make_sandbox(directory: Path) -> Sandbox:
    """A project in `directory`/project on an upstream in `directory`/upstream."""
    source = directory / "upstream"
    for path, text in UPSTREAM.items():
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    (source / "run.sh").chmod(0o755)
    root = directory / "project"
    (root / "vendor").mkdir(parents=True)
    (root / "patches").mkdir()
    (root / "vendor" / "pins.toml").write_text('upstream = "up"\n', "utf-8")
    project = Project(root)
    with project.lock("test"):
        add_pin(project, NewPin("one", directory_source(project, source), make_default=True))
    return Sandbox(project)
