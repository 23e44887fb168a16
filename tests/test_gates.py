"""Lint, format, types and the direction of the imports are part of the test command."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GATES = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy --strict": ["-m", "mypy", "--strict", "pyggml"],
}
# From the ground up: a room imports from the rooms before it, never from those after it.
ROOMS = [
    "version", "errors", "files", "ulp", "processes", "project", "git", "upstream", "series", "builder", "native",
    "clock", "ggml", "llama", "models", "matrix", "testing", "prove", "frontier", "pages", "scaffold", "doctor", "cli",
]  # fmt: skip
# The same order among the packages of a room that is divided further.
INNER_ROOMS = {"series": ["patchfile", "stack", "worktree", "editing", "rebasing", "exchange"]}
# The package's own two files stand outside the order: they only pass on to it.
ENTRIES = {"pyggml", "pyggml.__main__"}


@pytest.mark.parametrize("gate", GATES)
def test_gate(gate: str) -> None:
    done = subprocess.run([sys.executable, *GATES[gate]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{gate}:\n{done.stdout}{done.stderr}"


def test_the_linter_sees_every_python_file() -> None:
    def lines(*command: str) -> set[Path]:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {(ROOT / line).resolve() for line in done.stdout.splitlines()}

    tracked = lines("git", "ls-files", "*.py", "*.pyi")
    linted = lines(sys.executable, "-m", "ruff", "check", "--show-files", ".")
    assert len(tracked) > 100
    assert tracked - linted == set()


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((ROOT / "pyggml").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, source: str, known: set[str], package: bool = False) -> Iterator[str]:
    """The modules of `known` that a module's source imports: at the top, lazily, and for types only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + package]
                base = ".".join([*parents, base] if base else parents)
            of = [f"{base}.{alias.name}" for alias in node.names]
            yield from (one for one in of if one in known)
            if base in known and any(one not in known for one in of):
                yield base


def arrows() -> dict[str, set[str]]:
    """Module to the modules that it imports."""
    paths = modules()
    known = set(paths)
    return {
        name: set(imports(name, path.read_text("utf-8"), known, path.name == "__init__.py")) - {name}
        for name, path in paths.items()
    }


def test_what_an_import_names() -> None:
    known = {"p", "p.b", "p.c", "p.c.d"}
    source = "from p import b, x\ndef f():\n    import p.c.d\n    from .c import d\n    from . import c"
    assert set(imports("p.a", source, known)) == {"p", "p.b", "p.c.d", "p.c"}


def upward(graph: dict[str, set[str]], parent: str, order: list[str]) -> Iterator[str]:
    """Imports among the packages of `parent` that go against `order`, and packages without a place in it."""
    rank = {f"{parent}.{name}": index for index, name in enumerate(order)}
    depth = parent.count(".") + 2

    def room(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    inside = [name for name in graph if name.startswith(f"{parent}.") and name not in ENTRIES]
    yield from sorted(f"{name} has no place in the order" for name in {*map(room, inside)} - set(rank))
    for name in inside:
        for other in sorted(graph[name]):
            if other == parent or other in ENTRIES or rank.get(room(other), -1) > rank.get(room(name), -1):
                yield f"{name} imports {other}"


def test_lower_rooms_never_import_higher_ones() -> None:
    """Lazy imports, imports for types, and `from pyggml import …` count."""
    graph = arrows()
    assert list(upward(graph, "pyggml", ROOMS)) == []
    for room, order in INNER_ROOMS.items():
        assert list(upward(graph, f"pyggml.{room}", order)) == []


def test_what_goes_upward() -> None:
    graph = {"p": {"p.b"}, "p.a.x": {"p.b.y", "p.a.z"}, "p.a.z": set(), "p.b.y": {"p.a.x", "p"}, "p.c": set()}
    assert list(upward(graph, "p", ["a", "b"])) == [
        "p.c has no place in the order",
        "p.a.x imports p.b.y",
        "p.b.y imports p",
    ]


def test_no_circles() -> None:
    """No two modules import each other, directly or over others; lazy imports and imports for types count."""
    try:
        TopologicalSorter(arrows()).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " <- ".join(error.args[1]))


def test_class_names_are_unique_over_the_package() -> None:
    where: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(module)
    assert {name: places for name, places in where.items() if len(places) > 1} == {}
