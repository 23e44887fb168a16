"""The commands from end to end, with the tiny upstream as a pin of kind `directory`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builder.conftest import ALL_STEPS, write_upstream
from tests.command_line import run_here

pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in ("git", "cmake", "ninja", "cc", "c++")),
    reason="needs git, cmake, ninja, cc and c++ on PATH",
)


def git_tree(directory: Path) -> str:
    """What git itself says the tree of `directory` is."""
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    store = directory.parent / "tree.git"

    def git(*args: str) -> str:
        command = ["git", f"--git-dir={store}", f"--work-tree={directory}", *args]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=env, cwd=directory
        ).stdout

    git("init", "-q")
    git("add", "-A")
    return git("write-tree").strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    upstream = write_upstream(tmp_path / "origin")
    root = tmp_path / "my pröject"
    (root / "vendor").mkdir(parents=True)
    (root / "patches").mkdir()
    (root / "vendor" / "pins.toml").write_text(
        f'upstream = "llama.cpp"\ndefault = "p1"\n[pin.p1]\ntree = "{git_tree(upstream)}"\n'
        f'[pin.p1.source]\nkind = "directory"\npath = "{upstream}"\n',
        "utf-8",
    )
    return root


def pyggml(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    ended = run_here(*args, cwd=cwd)
    return subprocess.CompletedProcess(args, ended.code, ended.out, ended.err)


def test_up_does_everything_once(project: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", "from pyggml.cli import main; main()", "up", "--json"]
    first = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert document["pin"] == "p1"
    assert document["patches"] == {"applied": 0, "total": 0, "changed": False}
    assert document["build"]["steps"] == ALL_STEPS
    assert document["build"]["variant"] == "p1-cpu"
    assert document["check"]["ok"] is True
    counts = {program["name"]: program["passed"] for program in document["check"]["programs"]}
    assert counts == {"test-alloc": 1, "test-llama-archs": 1}
    second = pyggml(project, "up")
    assert second.returncode == 0, second.stderr
    rows = dict(line.split(None, 1) for line in second.stdout.splitlines())
    assert rows["pin"] == "p1 (already fetched)"
    assert rows["patches"] == "0 of 0 applied"
    assert rows["build"].startswith(f"p1-cpu: up to date (last: {ALL_STEPS} steps")
    assert rows["check"] == "passed: 2 passed, 0 failed, 0 skipped (remembered)"


def test_up_fails_when_the_check_does(project: Path) -> None:
    assert pyggml(project, "up").returncode == 0
    alloc = project / "vendor" / "llama.cpp" / "alloc.cpp"
    alloc.write_text(alloc.read_text("utf-8").replace("== 42", "== 43"), "utf-8")
    built = pyggml(project, "build", "--json")
    assert (built.returncode, json.loads(built.stdout)["steps"], json.loads(built.stdout)["dirty"]) == (
        0,
        2,
        True,
    )
    failed = pyggml(project, "up")
    assert failed.returncode == 1
    assert "FAILED: 1 passed, 1 failed" in failed.stdout
    assert "pyggml: the check failed: test-alloc" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_build_alone_gets_what_it_compiles(project: Path) -> None:
    done = pyggml(project, "build", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == ALL_STEPS
    assert "at pin p1: fetched" in done.stderr
    source = project / "vendor" / "llama.cpp" / "alloc.cpp"
    source.write_text(source.read_text("utf-8") + "// mine\n", "utf-8")
    again = pyggml(project, "build", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["dirty"] is True
    assert source.read_text("utf-8").endswith("// mine\n")


def test_build_prints_a_line_for_a_build_without_work(project: Path) -> None:
    assert pyggml(project, "up").returncode == 0
    done = pyggml(project, "build")
    assert done.stdout.startswith("p1-cpu is up to date: 0 steps")
    assert done.stderr == ""


def test_failing_build_ends_in_ten_lines(project: Path) -> None:
    assert pyggml(project, "up").returncode == 0
    (project / "vendor" / "llama.cpp" / "lib.c").write_text(
        "int broken(void) { return nothing; }\n" * 30, "utf-8"
    )
    done = pyggml(project, "build")
    assert done.returncode == 1
    told = done.stderr[done.stderr.index("pyggml: ") :]
    assert len(told.splitlines()) <= 10
    assert "lib.c:1" in told
    assert "build.log" in told


def test_wrong_options_are_usage_errors(project: Path) -> None:
    assert pyggml(project, "up").returncode == 0
    for args in (("--sanitize", "adress"), ("--jobs", "0"), ("--variant", "../x"), ("--target", "no-such")):
        done = pyggml(project, "build", *args)
        assert done.returncode == 2, args
        assert "Traceback" not in done.stderr
