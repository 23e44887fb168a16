"""Races that upstream has mended: with the mending undone, virtual devices find each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "missing_waits.py"

pytestmark = pytest.mark.native


@pytest.mark.slow
def test_races_that_upstream_has_mended_are_found(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    command = [sys.executable, str(TOOL), "--undone", "--json", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["what"].partition(":")[0]: row for row in json.loads(table.read_text())}
    assert set(rows) == {"26040", "8897", "19179"}
    # Each by its numbers as well as by the checker, which names both operations.
    assert all(row["others"] and row["races"] for row in rows.values())
    # A split of the CPU writes where an upload of the split before still reads.
    overwritten = r"by the host \(writes\) is not ordered after set '.*' in the queue of VDEV0 \(reads\)"
    assert re.search(overwritten, rows["26040"]["first"])
