"""The pins that are not the default stay complete: built beside it, their patches' proofs pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyggml.project import Project
from pyggml.upstream.pins import read_pins

ROOT = Path(__file__).parent.parent
PINS = read_pins(Project(ROOT))
UNDER_TEST = PINS.get(os.environ.get("PYGGML_TESTS_PIN"))
OTHERS = [pin.name for pin in PINS.pins if pin.name != UNDER_TEST.name]
pytestmark = [pytest.mark.native, pytest.mark.slow]


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """This project's own files in another place; gone afterwards, a build is large."""
    for name in ("pyggml", "tests", "patches"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "vendor").mkdir()
    shutil.copy(ROOT / "vendor" / "pins.toml", tmp_path / "vendor")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.parametrize("pin", OTHERS)
def test_the_proofs_of_another_pin_pass_on_its_build(pin: str, copy: Path) -> None:
    series = tomllib.loads((copy / "patches" / pin / "series.toml").read_text())
    nodes = list(dict.fromkeys(node for patch in series["patch"] for node in patch["proof"]))
    assert nodes, f"no patch of {pin} has a proof"
    told = ("PYGGML_TESTS_", "PYGGML_BUILD", "PYGGML_SOURCE", "PYGGML_PROJECT", "PYTEST_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nodes]
    done = subprocess.run(
        command, cwd=copy, env={**env, "PYGGML_TESTS_PIN": pin}, capture_output=True, text=True, timeout=2400
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout, done.stdout[-2000:]
