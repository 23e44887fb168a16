"""No sequence of calls on public handles kills the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.native

CHILD = Path(__file__).with_name("fuzz_child.py")
EXAMPLES = int(os.environ.get("PYGGML_FUZZ_EXAMPLES", "60"))


@pytest.mark.parametrize("seed", range(2))
def test_no_sequence_of_calls_kills_the_process(seed: int, tmp_path: Path) -> None:
    """The child writes every call down before it makes it, so that its death shows the sequence."""
    journal = tmp_path / "calls"
    done = subprocess.run(
        [sys.executable, CHILD, str(seed), str(EXAMPLES), journal],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    if done.returncode != 0:
        calls = journal.read_text("utf-8") if journal.is_file() else ""
        text = f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        pytest.fail(f"exit status {done.returncode} after\n{calls[-6000:]}\n{text}", pytrace=False)
