"""patch reword: another message, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from series_helpers import Sandbox


def messages(box: Sandbox) -> list[str]:
    return [
        text.strip() for text in box.git("log", "--format=%B%x00", "pin/one..").split("\0") if text.strip()
    ][::-1]


@pytest.mark.parametrize("applied", [3, 2, 1, 0])
def test_only_the_message_changes(three: Sandbox, applied: int) -> None:
    three.ok("patch", "unapply", "--to", str(applied))
    before, tree = three.files(), three.git("rev-parse", "HEAD^{tree}")
    old = messages(three)
    done = three.ok(
        "patch", "reword", "second", "-m", "second : in better words", "-m", "Why: it reads well."
    )
    after = three.files()
    changed = [name for name in after if after[name] != before.get(name)]
    assert changed == ["0002-second.patch"] and after.keys() == before.keys()
    assert f"{applied} of 3 patches applied" in done.out
    assert three.git("rev-parse", "HEAD^{tree}") == tree
    head, diff = (f["0002-second.patch"].split(b"\n---\n", 1) for f in (before, after))
    assert head[1] == diff[1]
    three.ok("patch", "apply")
    assert messages(three)[1] == "second : in better words\n\nWhy: it reads well."
    assert messages(three)[:1] == old[:1] or not applied
    assert three.ok("patch", "verify").code == 0
    three.ok("undo")
    if applied < 3:
        three.ok("undo")
    assert three.files() == before


def test_edits_stay_as_they_are(three: Sandbox) -> None:
    three.replace("src/scale.c", "line 30\n", "line dreissig\n")
    three.git("add", "src/scale.c")
    three.replace("src/scale.c", "line 31\n", "line einunddreissig\n")
    three.replace("README.md", "downstream\n", "edited\n")
    three.write("new.c", "new\n")
    three.git("add", "new.c")
    before = (
        three.state()[0],
        three.git("status", "--porcelain"),
        three.git("diff"),
        three.git("diff", "--cached"),
    )
    three.ok("patch", "reword", "1", "-m", "first : other words")
    assert (three.state()[0], *before[1:]) == before
    assert before[1:] == (
        three.git("status", "--porcelain"),
        three.git("diff"),
        three.git("diff", "--cached"),
    )
    three.ok("undo")
    assert before[1:] == (
        three.git("status", "--porcelain"),
        three.git("diff"),
        three.git("diff", "--cached"),
    )


def test_the_message_from_a_file_and_from_the_editor(three: Sandbox, tmp_path: Path) -> None:
    text = tmp_path / "message"
    text.write_text("third : from a file\n\nBödy.\n")
    three.ok("patch", "reword", "third", "-F", str(text))
    assert messages(three)[2] == "third : from a file\n\nBödy."
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/from a file/from an editor/' \"$1\"\n")
    editor.chmod(0o755)
    three.ok("patch", "reword", "3", env={"EDITOR": str(editor), "VISUAL": ""})
    assert messages(three)[2] == "third : from an editor\n\nBödy."
    editor.write_text('#!/bin/sh\n: > "$1"\n')
    before = three.state()
    assert "empty" in three.refused("patch", "reword", "3", code=2, env={"EDITOR": str(editor), "VISUAL": ""})
    assert "both" in three.refused("patch", "reword", "3", "-m", "x", "-F", str(text), code=2)
    assert three.state() == before


def test_what_is_refused(three: Sandbox) -> None:
    before = three.state()
    assert "no patch" in three.refused("patch", "reword", "ninth", "-m", "x")
    assert "empty" in three.refused("patch", "reword", "1", "-m", " ", code=2)
    assert "survive" in three.refused("patch", "reword", "1", "-m", "a : b\n\n---\nlost")
    assert three.state() == before
    three.git("commit", "-q", "--amend", "-m", "third : by hand")
    assert "commits of yours" in three.refused("patch", "reword", "1", "-m", "x")
    three.ok("patch", "refresh")
    three.ok("patch", "edit", "1")
    assert "under way" in three.refused("patch", "reword", "1", "-m", "x")
