"""patch import --directory and --replace."""

from __future__ import annotations

from pathlib import Path

import pytest
from series_helpers import Sandbox
from test_edit import texts

MAIL = """From: Bob <bob@example.org>
Date: Tue, 14 Nov 2023 22:13:20 +0000
Subject: [PATCH] first : better

Body.
---
diff --git a/{path} b/{path}
--- a/{path}
+++ b/{path}
@@ -{line},3 +{line},3 @@
 line {before}
-line {old}
+{new}
 line {after}
diff --git a/{other} b/{other}
new file mode 100644
--- /dev/null
+++ b/{other}
@@ -0,0 +1 @@
+new
"""


def mail(place: Path, at: int, new: str, directory: str = "src/") -> str:
    """A patch that changes line `at` of scale.c and makes new.c beside it."""
    fields = {"path": f"{directory}scale.c", "other": f"{directory}new.c", "line": at - 1}
    file = place / "better.patch"
    file.write_text(MAIL.format(**fields, before=at - 1, old=at, after=at + 1, new=new))
    return str(file)


@pytest.mark.parametrize("directory", ["src", "src/", "./src"])
def test_into_a_directory(three: Sandbox, tmp_path: Path, directory: str) -> None:
    three.ok("patch", "import", "--directory", directory, mail(tmp_path, 30, "line thirty", ""))
    assert texts(three)["0004-better.patch"] == "+new\n-line 30\n+line thirty\n"
    assert (three.tree / "src/new.c").read_text() == "new\n"
    assert not (three.tree / "new.c").exists()


def test_into_a_directory_although_the_root_could_take_it(three: Sandbox, tmp_path: Path) -> None:
    """A patch that only makes a file fits anywhere."""
    whole = Path(mail(tmp_path, 30, "x", "")).read_text()
    head, new = whole.split("---\n", 1)[0], whole[whole.rindex("diff --git ") :]
    (tmp_path / "new.patch").write_text(f"{head}---\n{new}")
    three.ok("patch", "import", "--directory", "src", str(tmp_path / "new.patch"))
    assert (three.tree / "src/new.c").exists() and not (three.tree / "new.c").exists()


@pytest.mark.parametrize("directory", ["/src", "../src", "src/../.."])
def test_a_directory_outside_is_refused(three: Sandbox, tmp_path: Path, directory: str) -> None:
    before = three.state()
    file = mail(tmp_path, 30, "x", "")
    assert "outside the source" in three.refused("patch", "import", "--directory", directory, file, code=2)
    assert three.state() == before


def test_one_patch_is_replaced(three: Sandbox, tmp_path: Path) -> None:
    before = three.files()
    done = three.ok("patch", "import", "--replace", "first", mail(tmp_path, 3, "line III"))
    assert "3 of 3 patches applied" in done.out
    assert texts(three) == {
        "0001-first.patch": "+new\n-line 3\n+line III\n",
        "0002-second.patch": "-line 20\n+line twenty\n",
        "0003-third.patch": "-upstream\n+downstream\n",
    }
    assert three.git("log", "-1", "--format=%an %s", "HEAD~2") == "Bob first : better"
    assert three.ok("patch", "verify").code == 0
    three.ok("undo")
    assert three.files() == before


def test_a_replacement_that_conflicts_above(three: Sandbox, tmp_path: Path) -> None:
    before, file = three.state(), mail(tmp_path, 20, "line XX")
    assert "patch second conflicts" in three.refused("patch", "import", "--replace", "1", file, code=3)
    three.ok("patch", "abort")
    assert three.state() == before
    three.refused("patch", "import", "--replace", "1", file, code=3)
    text = (three.tree / "src/scale.c").read_text()
    start, end = text.index("<<<<<<<"), text.index("\n", text.index(">>>>>>>")) + 1
    three.write("src/scale.c", text[:start] + "line twenty\n" + text[end:])
    three.ok("patch", "continue")
    assert texts(three)["0001-first.patch"] == "+new\n-line 20\n+line XX\n"
    assert texts(three)["0002-second.patch"] == "-line XX\n+line twenty\n"


def test_what_a_replacement_refuses(three: Sandbox, tmp_path: Path) -> None:
    file = mail(tmp_path, 3, "line III")
    before = three.state()
    assert "no patch" in three.refused("patch", "import", "--replace", "ninth", file)
    assert "there are 2" in three.refused("patch", "import", "--replace", "1", file, file)
    other = tmp_path / "second.patch"
    other.write_bytes(three.files()["0002-second.patch"])
    assert "as second" in three.refused("patch", "import", "--replace", "1", str(other))
    three.replace("README.md", "downstream\n", "edited\n")
    assert "README.md edited" in three.refused("patch", "import", "--replace", "1", file)
    three.git("checkout", "-q", "README.md")
    assert three.state() == before
