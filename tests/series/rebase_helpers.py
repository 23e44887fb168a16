"""Two snapshots of a small upstream, and a project with a series on the older one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from series_helpers import Sandbox

from pyggml.project import Project
from pyggml.upstream.new_pin import NewPin, add_pin, directory_source


@dataclass(frozen=True)
class TwoPins(Sandbox):
    """A sandbox whose series is on pin `one`; pin `two` is the newer upstream."""

    @property
    def new(self) -> Path:
        return self.project.patches_dir / "two"

    @property
    def private(self) -> Path:
        """The worktree of a rebase that waits."""
        return self.root / ".pyggml" / "rebase" / "two" / "tree"

    def new_files(self) -> dict[str, bytes]:
        """Everything below patches/two, by relative path."""
        return {
            p.relative_to(self.new).as_posix(): p.read_bytes() for p in self.new.rglob("*") if p.is_file()
        }

    def everything(self) -> dict[str, object]:
        """Every byte of the project but for pyggml's own state and git's caches."""
        found: dict[str, object] = {
            p.relative_to(self.root).as_posix(): p.read_bytes()
            for p in self.root.rglob("*")
            if p.is_file() and not {".git", ".pyggml"} & set(p.relative_to(self.root).parts)
        }
        found["HEAD"] = self.git("rev-parse", "HEAD")
        found["branch"] = self.git("symbolic-ref", "HEAD")
        found["status"] = self.git("status", "--porcelain")
        return found

    def resolve(self, path: str, text: str) -> None:
        (self.private / path).write_text(text, "utf-8")


def write_upstream(directory: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8", newline="")


def make_two_pins(directory: Path, old: dict[str, str], new: dict[str, str]) -> TwoPins:
    """A project in `directory`/project; nothing applied, no patches."""
    root = directory / "project"
    (root / "vendor").mkdir(parents=True)
    (root / "patches").mkdir()
    (root / "vendor" / "pins.toml").write_text('upstream = "up"  # a comment\n', "utf-8")
    project = Project(root)
    for name, files in (("one", old), ("two", new)):
        source = directory / f"upstream-{name}"
        write_upstream(source, files)
        with project.lock("test"):
            add_pin(project, NewPin(name, directory_source(project, source), make_default=name == "one"))
    return TwoPins(project)


LINES = [f"line {n}\n" for n in range(1, 41)]
BLOCK = "static int twin_{0}(void) {{\n    int x = 0;\n    x += 1;\n    return x;\n}}\n\n"
OLD = {
    "a.c": "".join(LINES),
    "b.c": "".join(LINES),
    "twins.c": "".join(BLOCK.format(name) for name in "abcd"),
    "README.md": "upstream\n",
}
NEW = {
    **OLD,
    "a.c": "new 1\nnew 2\n" + "".join(LINES).replace("line 5\n", "line five upstream\n"),
}


def four_patches(box: TwoPins) -> TwoPins:
    """On NEW: clean, merged (+2), a conflict, clean."""
    box.patch("clean", "b.c", "line 7\n", "line seven\n")
    box.patch("moves", "a.c", "line 30\n", "line thirty\n")
    box.patch("conflicts", "a.c", "line 5\n", "line five mine\n")
    box.patch("after", "README.md", "upstream\n", "mine\n")
    return box


RESOLVED = "new 1\nnew 2\n" + "".join(LINES).replace("line 5\n", "line five of both\n").replace(
    "line 30\n", "line thirty\n"
)
"""a.c on pin two with the conflict resolved."""
