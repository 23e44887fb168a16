"""`pyggml status`: what it says, and the command that it sends people to next."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from series_helpers import Sandbox

from pyggml.builder.record import BuildRecord, write_record


def look(box: Sandbox) -> tuple[Any, list[str]]:
    overview = box.ok("status", "--json").json
    return overview, [command for command, _ in overview["next"]]


def record_build(box: Sandbox, tree: str, check: bool | None = None, state: str = "done") -> None:
    directory = box.project.root / ".pyggml" / "build" / "one-cpu"
    directory.mkdir(parents=True, exist_ok=True)
    record = BuildRecord(
        "one-cpu", look(box)[0]["pin"], state, "h", tree, False, "f", "x86_64", (), {}, (), {},
        check=None if check is None else {"ok": check},
    )  # fmt: skip
    write_record(directory, record)


def head_tree(box: Sandbox) -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD^{tree}"], cwd=box.tree, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_every_state_has_a_next_command_that_leads_on(three: Sandbox) -> None:
    assert look(three)[1] == ["pyggml build"]
    record_build(three, "0" * 40)
    overview, following = look(three)
    assert (overview["builds"][0]["state"], following) == ("old", ["pyggml build"])
    record_build(three, head_tree(three), state="configured")
    assert look(three)[1] == ["pyggml build"]
    record_build(three, head_tree(three))
    overview, following = look(three)
    assert (overview["builds"][0]["state"], following) == ("current", ["pyggml up"])
    record_build(three, head_tree(three), check=False)
    assert "one-cpu, current, check FAILED" in three.ok("status").out
    record_build(three, head_tree(three), check=True)
    assert look(three)[1] == ["pyggml patch new NAME", "pyggml matrix"]

    three.replace("README.md", "downstream\n", "edited\n")
    overview, following = look(three)
    assert overview["series"]["state"] == "dirty"
    assert overview["builds"][0]["state"] == "edited"
    assert following[0] == "pyggml patch refresh"
    assert "1 file, 0 commits in no patch yet" in three.ok("status").out
    three.ok(*following[0].split()[1:])

    three.ok("patch", "pop")
    assert look(three)[1] == ["pyggml patch apply"]
    assert "partial, 2 of 3 patches applied" in three.ok("status").out


def test_what_waits_comes_first(three: Sandbox) -> None:
    three.ok("patch", "edit", "2")
    overview, following = look(three)
    assert overview["series"]["operation"]
    assert following == ["pyggml patch continue", "pyggml patch abort"]
    assert "waiting" in three.ok("status").out


def test_a_project_without_pins(three: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "empty" / "vendor").mkdir(parents=True)
    (tmp_path / "empty" / "patches").mkdir()
    (tmp_path / "empty" / "vendor" / "pins.toml").write_text('upstream = "up"\n')
    out = three.ok("--project", str(tmp_path / "empty"), "status").out
    assert "next     pyggml vendor add --help" in out
