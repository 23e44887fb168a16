"""`pyggml run --clock` and `--trace` on a real model, and their wrong usage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clock.test_hand_made import not_nested
from tests.command_line import run_here


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("cache", ["0", "1"])
def test_a_program_is_predicted_and_traced(tiny_model: Any, tmp_path: Path, cache: str) -> None:
    trace = tmp_path / "trace.json"
    arguments = ["-m", str(tiny_model("llama")), "-sm", "tensor", "-fa", "1", "-ngl", "99", "-nkvo", cache]
    done = run_here(
        "run", "--devices", "2", "--clock", "two-gpus", "--trace", str(trace), "--",
        "llama-bench", *arguments, "-p", "32", "-n", "4", "-r", "1", "-t", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "clock two-gpus: a model, not a measurement" in done.err
    # llama-bench runs the prompt twice and the generation once more than it was asked, to warm up.
    assert "1 token: " in done.err and "(median of 5 steps)" in done.err
    assert "32 tokens: " in done.err and "(median of 2 steps)" in done.err
    assert "critical path of the last step of 1 token" in done.err
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert not_nested(events) == []
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names >= {"host", "host > VDEV0", "host > VDEV1", "VDEV0 > host"}
    arrows = [(event["ph"], event["id"], event["ts"]) for event in events if event["ph"] in "sf"]
    starts = {number: ts for phase, number, ts in arrows if phase == "s"}
    assert starts and all(ts >= starts[number] for phase, number, ts in arrows if phase == "f")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trace", "x"], "--trace needs costs\nAdd --clock PRESET or --clock FILE."),
        (["--clock", "one-gpus"], "'one-gpus' are neither a preset nor a file\nDid you mean 'one-gpu'?"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    done = run_here("run", *arguments, "--", "llama-bench")
    assert (done.code, words in done.err) == (2, True), done.err
