"""The ladder: what upstream does at each rung, and the series that it does it to."""

from __future__ import annotations

from pathlib import Path

from series_helpers import Sandbox

from tests.upstream.helpers import git, member, tar_bytes

LINES = "".join(f"line {n}\n" for n in range(1, 41))
FUNCTION = "def f():\n" + "".join(f"    a{n} = {n}\n" for n in range(1, 21))
START = {
    "a.c": LINES,
    "b.c": LINES,
    "c.c": LINES,
    "d.c": LINES,
    "old/moved.c": "".join(f"moved {n}\n" for n in range(1, 41)),
    "gone.c": "".join(f"gone {n}\n" for n in range(1, 41)),
    "value.py": "".join(f"v{n} = {n}\n" for n in range(1, 41)),
    "func.py": FUNCTION,
    "README.md": "upstream\n",
}


def _rungs() -> list[dict[str, str]]:
    rungs = [dict(START)]

    def rung(**changes: tuple[str, str]) -> dict[str, str]:
        new = dict(rungs[-1])
        for name, (old, text) in changes.items():
            path = {"moved": "old/moved.c"}.get(name, f"{name}.py" if f"{name}.py" in START else f"{name}.c")
            assert old in new[path]
            new[path] = new[path].replace(old, text)
        rungs.append(new)
        return new

    rung(b=("line 40\n", "line 40\nline 41\n"))
    rung(b=("line 1\n", "line 0\nline 1\n"))
    rung(d=("line 5\n", "line five, for a while\n"))
    rung(d=("line five, for a while\n", "line 5\n"), a=("line 5\n", "line five upstream\n"))
    five = rung(moved=("moved 15\n", "moved fifteen upstream\n"))
    five["new/moved.c"] = five.pop("old/moved.c")
    rung(c=("line 10\n", "line ten\n"))
    rung(c=("line 20\n", "line twenty\n"))
    rungs[-1]["c.c"] = rungs[-1]["c.c"].replace("line 35\n", "line thirty-five upstream\n")
    rung(b=("line 41\n", "line 41\nline 42\n")).pop("gone.c")
    rung(value=("v40 = 40\n", "v40 = -1\n"))
    rung(func=("def f():\n", "if True:\n"))
    rung(b=("line 42\n", "line 42\nline 43\n"))
    return rungs


RUNGS = _rungs()
PROOF = """\
import os
import pathlib
import runpy


def test_sum():
    values = runpy.run_path(str(pathlib.Path(os.environ["PYGGML_SOURCE"]) / "value.py"))
    assert values["v5"] + values["v40"] == 45, "the sum is wrong"
"""
EXPECTED = {
    "clean": None,
    "collides": ("text", 3, 4, "collides"),
    "depends": ("text", 3, 4, "depends"),
    "upstream": ("text", 5, 6, "wholly upstream"),
    "partly": ("text", 6, 7, "partly upstream"),
    "renamed": ("text", 4, 5, "renamed"),
    "removed": ("text", 7, 8, "removed"),
    "heals": None,
    "semantics": None,
    "compiles": None,
}
"""Patch to (question, last good rung, first bad rung, fate) by text alone, from what the rungs do."""
BY_PROOF = ("proof", 8, 9)
BY_COMPILING = ("compile", 9, 10)


def three_patches(box: Sandbox) -> None:
    """The first three patches, on the first rung."""
    box.patch("clean", "b.c", "line 7\n", "line seven\n")
    box.replace("README.md", "upstream\n", "mine\n")
    box.patch("collides", "a.c", "line 5\n", "line five mine\n")
    box.patch("depends", "a.c", "line five mine\n", "line five mine, and more\n")


def seven_more(box: Sandbox) -> None:
    """The others."""
    box.patch("upstream", "c.c", "line 10\n", "line ten\n")
    box.replace("c.c", "line 20\n", "line twenty\n")
    box.patch("partly", "c.c", "line 35\n", "line thirty-five mine\n")
    box.patch("renamed", "old/moved.c", "moved 15\n", "moved fifteen mine\n")
    box.patch("removed", "gone.c", "gone 15\n", "gone fifteen\n")
    # It needs what does not conflict of `collides`.
    box.replace("README.md", "mine\n", "mine too\n")
    box.patch("heals", "d.c", "line 5\n", "line five mine\n")
    box.patch("semantics", "value.py", "v5 = 5\n", "v5 = 5 + 0\n")
    box.patch("compiles", "func.py", "    a20 = 20\n", "    a20 = 20\n    return a20\n")
    path = box.patches / "series.toml"
    head, rest = path.read_text().split('name = "semantics"')
    proof = 'proof = ["proofs/test_up.py::test_sum"]'
    path.write_text(f'{head}name = "semantics"' + rest.replace("proof = []", proof, 1))


def write_checkout(directory: Path) -> None:
    """A git repository with a commit and a tag r0, r1, … for each rung."""
    directory.mkdir()
    git(directory, "init", "-q", "-b", "main")
    for number, files in enumerate(RUNGS):
        for path in START:
            (directory / path).unlink(missing_ok=True)
        for path, text in files.items():
            (directory / path).parent.mkdir(exist_ok=True)
            (directory / path).write_text(text)
        git(directory, "add", "-A")
        git(directory, "commit", "-q", "-m", f"rung {number}")
        git(directory, "tag", f"r{number}")


def write_sdists(directory: Path) -> None:
    """The package `lad`: version 1.N has rung N in its folder `src/up`."""
    directory.mkdir()
    for number, files in enumerate(RUNGS):
        write_sdist(directory, f"1.{number}", {f"src/up/{path}": text for path, text in files.items()})


def write_sdist(directory: Path, version: str, files: dict[str, str]) -> None:
    top = f"lad-{version}"
    members = [member(f"{top}/PKG-INFO"), member(f"{top}/README.md")]
    members += [member(f"{top}/{path}", text.encode()) for path, text in files.items()]
    (directory / f"{top}.tar.gz").write_bytes(tar_bytes(members))
