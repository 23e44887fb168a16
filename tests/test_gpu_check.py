"""The parts of the GPU script that run without a GPU; REHEARSE=1 tools/gpu_check.sh OUT runs all of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent / "tools"


def report(steps: Path) -> tuple[dict[str, Any], str]:
    file = steps / "out" / "gpu_check.json"
    file.parent.mkdir()
    command = [sys.executable, TOOLS / "gpu_report.py", steps, "321", file]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(file.read_text("utf-8")), done.stdout


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (Debian: apt install shellcheck)")
    done = subprocess.run(["shellcheck", TOOLS / "gpu_check.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("arguments", [[], ["pack"], ["--help"], ["a", "b", "c"]])
def test_wrong_usage_explains_itself(arguments: list[str]) -> None:
    done = subprocess.run([TOOLS / "gpu_check.sh", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert "tools/gpu_check.sh pack FILE.tar.xz" in done.stdout
    assert "PACK_PYTHON" in done.stdout and "set -u" not in done.stdout


def test_figures_with_the_patches_by_those_without(tmp_path: Path) -> None:
    rows = [{"n_prompt": 512, "n_gen": 0, "avg_ts": 300.0}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 90.0}]
    (tmp_path / "bench-2-nkvo0-after.json").write_text(json.dumps(rows))
    rows[0]["avg_ts"], rows[1]["avg_ts"] = 200.0, 100.0
    (tmp_path / "bench-2-nkvo0-before.json").write_text("a warning\n" + json.dumps(rows))
    (tmp_path / "streams-2-nkvo1-after.jsonl").write_text('\n{"pl": 4, "speed_tg": 50.0}\n')
    (tmp_path / "streams-2-nkvo1-before.jsonl").write_text("")
    (tmp_path / "perplexity-2.log").write_text("Final estimate: PPL = 12.5000 +/- 0.25000\n")
    (tmp_path / "gpu.log").write_text("name, compute_cap\nNVIDIA H200, 9.0\n")
    (tmp_path / "streams-2-nkvo1-before.log").write_text("ggml.c:1: GGML_ASSERT(x) failed\n")
    # A failure without the patches is not an error: the patches fix it.
    (tmp_path / "steps.tsv").write_text(
        "bench-2-nkvo0-after.json\t0\t7\nstreams-2-nkvo1-before.jsonl\t134\t1\n"
    )
    document, output = report(tmp_path)
    assert document["ok"] and document["seconds"] == 321
    assert document["ratios"]["bench-2-nkvo0"] == {"pp512": 1.5, "tg64": 0.9}
    assert document["ratios"]["streams-2-nkvo1"] == {"4 streams": "50.0 t/s, before: nothing"}
    assert document["perplexity"] == {"perplexity-2": {"ppl": "12.5000", "error": "0.25000"}}
    assert document["gpu"] == ["NVIDIA H200, 9.0"]
    assert document["steps"][1]["tail"] == "ggml.c:1: GGML_ASSERT(x) failed\n"
    assert "2 steps in 321 s, failed: streams-2-nkvo1-before.jsonl" in output


@pytest.mark.parametrize("steps", ["", "matrix.json\t1\t3\n", "matrix.json\tno time left\t0\n"])
def test_what_did_not_end_well_is_not_ok(tmp_path: Path, steps: str) -> None:
    (tmp_path / "steps.tsv").write_text(steps)
    document, _ = report(tmp_path)
    assert not document["ok"]
    assert [row["step"] for row in document["steps"]] == ["matrix.json"] * bool(steps)
