"""Lint, format and types are part of the test command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GATES = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy --strict": ["-m", "mypy", "--strict", "pyggml"],
}


@pytest.mark.parametrize("gate", GATES)
def test_gate(gate: str) -> None:
    done = subprocess.run([sys.executable, *GATES[gate]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{gate}:\n{done.stdout}{done.stderr}"


def test_lower_rooms_never_import_higher_ones() -> None:
    """The order of the rooms, read from the import lines of every file."""
    import re

    order = [
        "errors", "files", "ulp", "project", "git", "vendor", "series", "build", "native", "ggml", "llama",
        "models", "verify", "testing", "prove", "scaffold", "doctor", "cli",
    ]  # fmt: skip
    rank = {name: index for index, name in enumerate(order)}
    wrong = []
    for path in sorted((ROOT / "pyggml").rglob("*.py")):
        parts = path.relative_to(ROOT / "pyggml").parts
        room = parts[0].removesuffix(".py")
        if room not in rank:
            continue
        for line in path.read_text("utf-8").splitlines():
            match = re.match(r"\s*(?:from|import) pyggml\.(\w+)", line)
            if match and match[1] in rank and rank[match[1]] > rank[room]:
                wrong.append(f"{'/'.join(parts)}: {line.strip()}")
    assert wrong == []
