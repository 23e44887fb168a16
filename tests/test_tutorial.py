"""Every command of the tutorial, typed in a fresh clone: the output is what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(
    r"(?P<before>[^\n]*(?:\n[^\n]+)*)\n\n^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
LOOSE = ((r"[0-9a-f]{12,40}", "ID"), (r"[0-9.]+(?= ?s\b| min\b)", "TIME"), ("─+", "─"), (r"\s+", " "))
"""What need not be as on the page: ids of commits, times, and how wide a table is."""


def typed(block: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with the output below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        yield command, output


def plain(line: str) -> str:
    for loose, word in LOOSE:
        line = re.sub(loose, word, line.strip())
    return line


def same(line: str, got: str) -> bool:
    """Whether a line of output is the one on the page, where … stands for what is left out."""
    return bool(re.fullmatch(".*".join(map(re.escape, plain(line).split("…"))), plain(got)))


def missing(expected: list[str], output: str) -> str | None:
    """The first line of the page that the output lacks; they come in the page's order."""
    lines = iter(output.splitlines())
    for line in expected:
        if line.strip("… ") and not any(same(line, got) for got in lines):
            return line
    return None


def test_lines_are_compared_but_for_times_and_commits() -> None:
    page = ["…", "15 of 15 patches, HEAD 840cecbafa14", "built in 14 s"]
    assert missing(page, "x\n15 of 15 patches, HEAD 5e9840c66145\nbuilt in 0.3 s\n") is None
    assert missing(page, "16 of 16 patches, HEAD 5e9840c66145\nbuilt in 0.3 s\n") == page[1]


@pytest.mark.native
@pytest.mark.slow
def test_the_tutorial_from_beginning_to_end(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    names = {
        f"GIT_{who}_{what}": "reader@example.com"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ours = ("PYTEST_", "PYGGML_TESTS", "PYGGML_BUILD", "PYGGML_VDEV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=clone, env={**env, **names, "PATH": path}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout

    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    run("git switch -C main; pyggml up")
    for block in BLOCK.finditer(PAGE.read_text("utf-8")):
        body, named = block["body"], re.findall(r"\*([\w./]+)\*", block["before"])
        if block["kind"] == "toml":
            listing = clone / "patches" / "b11549" / "series.toml"
            listing.write_text(listing.read_text("utf-8").rpartition("[[patch]]")[0] + body, "utf-8")
        elif block["kind"] == "console":
            for command, output in typed(body):
                if command == "git -C vendor/llama.cpp diff":
                    diff = "\n".join(output[output.index("--- a/src/llama-model.cpp") :]) + "\n"
                    apply = ["git", "-C", str(clone / "vendor" / "llama.cpp"), "apply"]
                    subprocess.run(apply, input=diff, text=True, check=True)
                got = run(command)
                assert missing(output, got) is None, f"$ {command}\n{got}\nlacks: {missing(output, got)}"
        elif named:
            (clone / named[-1]).write_text(body, "utf-8")
