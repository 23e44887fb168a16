"""What the documents say is there: paths, functions, commands, options, markers, variables and links."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from pyggml.cli.main import cli

ROOT = Path(__file__).parent.parent
DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MADE = ("vendor/llama.cpp", ".pyggml")
"""Paths that exist only once something was fetched or built."""

pages = pytest.mark.parametrize("page", DOCS, ids=lambda page: page.relative_to(ROOT).as_posix())


def spans(page: Path) -> list[str]:
    """The inline code of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """The words after `program`, of every command line of the page that runs it."""
    typed = [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line[:2] == "$ "]
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    inline = [span for span in spans(page) if re.match(rf"(python -m )?{program} ", span)]
    for line in [*lines, *typed, *inline]:
        rest: list[str] = []
        for word in [*shlex.shlex(line, posix=True, punctuation_chars="();<>|&"), ";"]:
            if re.fullmatch(r"[();<>|&]+", word):
                at = next(
                    (i for i, one in enumerate(rest) if one == program or one.endswith(f"/{program}")), None
                )
                if at is not None:
                    yield rest[at + 1 :]
                rest = []
            else:
                rest.append(word)


@cache
def tracked() -> frozenset[str]:
    """Every file and folder of the repository."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(line) for line in done.stdout.splitlines()]
    return frozenset(path.as_posix() for file in files for path in (file, *file.parents))


def defined(file: Path, name: str) -> bool:
    """Whether a Python file has the function, class, method (`Class.method`) or constant of that name."""
    body: list[ast.stmt] = ast.parse(file.read_text("utf-8")).body
    for part in name.split("."):
        here = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == part]
        assigned = [n for n in body if isinstance(n, ast.Assign | ast.AnnAssign) and part in ast.unparse(n)]
        if not here:
            return bool(assigned)
        body = here[0].body
    return True


@pages
def test_paths_exist_and_hold_what_is_named(page: Path) -> None:
    tops = {path.split("/")[0] for path in tracked()}
    wrong = []
    for span in spans(page):
        path, _, name = span.partition("::")
        path = path.rstrip("/")
        if not re.fullmatch(r"[\w./-]+", path) or path.split("/")[0] not in tops or path.startswith(MADE):
            continue
        if path not in tracked() or (name and not defined(ROOT / path, name.partition("[")[0])):
            wrong.append(span)
    assert wrong == []


@pages
def test_pyggml_commands_parse(page: Path) -> None:
    wrong = []
    for words in commands(page, "pyggml"):
        if not words or not re.fullmatch(r"[a-z-]+", words[0]):
            continue  # a word of a sentence
        command: click.Command = cli
        context = click.Context(cli)
        rest = words
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            below = command.get_command(context, rest[0])
            if below is None:
                wrong.append(words)
                break
            command, rest = below, rest[1:]
        else:
            context = click.Context(command, **command.context_settings)
            try:
                command.make_parser(context).parse_args([word for word in rest if word not in ("…", "...")])
            except click.UsageError as error:
                wrong.append([*words, error.message])
    assert wrong == []


@pages
def test_pytest_commands_parse(page: Path, pytestconfig: pytest.Config) -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    markers = {line.split(":")[0] for line in table["markers"]} | {"not", "and", "or"}
    by_the_reader = re.findall(r"\*(tests/[\w/.]+)\*", page.read_text("utf-8"))
    wrong = []
    for words in commands(page, "pytest"):
        for before, word in zip(["", *words], words, strict=False):
            if before == "-m":
                wrong += [word] if set(re.findall(r"\w+", word)) - markers else []
            elif word.startswith("--"):
                known = pytestconfig.getoption(word.partition("=")[0], default=wrong)
                wrong += [word] if known is wrong else []
            elif word.startswith("tests/"):
                wrong += [] if word.partition("::")[0] in {*tracked(), *by_the_reader} else [word]
    assert wrong == []


@pages
def test_tools_exist_and_have_the_options(page: Path) -> None:
    wrong = []
    for words in commands(page, "python"):
        if words and words[0].startswith(("tools/", "examples/")):
            there = words[0] in tracked()
            source = (ROOT / words[0]).read_text("utf-8") if there else ""
            wrong += [words[0]] if not there else [w for w in words if w[:2] == "--" and w not in source]
    assert wrong == []


@cache
def variables() -> frozenset[str]:
    """Every environment variable of pyggml's that a source names."""
    sources = [path for path in tracked() if path.endswith((".py", ".cpp", ".h", ".sh", ".cmake"))]
    return frozenset(
        name for path in sources for name in re.findall(r"PYGGML_[A-Z_]+", (ROOT / path).read_text("utf-8"))
    )


@pages
def test_variables_are_read_somewhere(page: Path) -> None:
    assert set(re.findall(r"\bPYGGML_[A-Z_]+\b", page.read_text("utf-8"))) - variables() == set()


@pages
def test_links_resolve(page: Path) -> None:
    def anchors(target: Path) -> set[str]:
        heads = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}

    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not path.startswith(("http:", "https:")) and (
            not target.exists() or (anchor and anchor not in anchors(target))
        ):
            wrong.append(link)
    assert wrong == []


@pages
def test_python_blocks_parse(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


def test_the_readme_leads_to_every_page() -> None:
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text("utf-8"))
    assert {page for page in DOCS if page.name != "README.md"} - {
        (ROOT / link).resolve() for link in links
    } == set()


def test_the_bindings_page_shows_the_example() -> None:
    example = (ROOT / "examples" / "split_matmul.py").read_text("utf-8")
    assert f"```python\n{example}```" in (ROOT / "docs" / "bindings.md").read_text("utf-8")


def test_the_tutorial_makes_the_change_of_the_patch() -> None:
    def change(text: str) -> list[str]:
        return re.findall(r"^[+-](?![+-]).*$", text[text.index("+++ b/src/llama-model.cpp") :], re.MULTILINE)

    (patch,) = ROOT.glob("patches/b11549/*-split-rounding.patch")
    (block,) = (
        one for one in blocks(ROOT / "docs" / "tutorial.md", "console") if "+++ b/src/llama-model.cpp" in one
    )
    assert change(block) == change(patch.read_text("utf-8"))


def test_the_architecture_names_every_room() -> None:
    from .test_gates import ROOMS

    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rooms = [
        f"pyggml/{room}/" if (ROOT / "pyggml" / room).is_dir() else f"pyggml/{room}.py" for room in ROOMS
    ]
    inner = [f"pyggml/series/{path.parent.name}/" for path in ROOT.glob("pyggml/series/*/__init__.py")]
    assert [room for room in [*rooms, *inner] if f"`{room}`" not in text] == []
