"""Symbolic links: none leads out of the tree, however it came there, and those inside are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from series_helpers import Sandbox

Step = Callable[[Sandbox], object]


def link(box: Sandbox, path: str, target: str) -> None:
    place = box.tree / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target)
    box.git("add", "-A", "-f")


def links(**made: str) -> Step:
    def step(box: Sandbox) -> None:
        for path, target in made.items():
            link(box, path.replace("__", "/"), target)

    return step


def renamed(box: Sandbox) -> None:
    """It leads inside where it is, and out of the tree from the root; the diff has no mode and no target."""
    box.git("mv", "src/deep/inner", "inner")


# A patch that is there already: links that lead inside.
INSIDE = {"src/deep/inner": "../../README.md", "root": ".", "src/up": "..", "src/deep/UP": "../.."}
OUT: dict[str, Step] = {
    "new, upwards": links(link="../outside"),
    "new, absolute": links(link="/etc/passwd"),
    "new, upwards after a way down": links(link="src/../../outside"),
    "new, in a directory": links(src__link="../../outside"),
    "new, into .git": links(link=".git/config"),
    "new, into .GIT": links(src__link="../.GIT/hooks"),
    "retargeted": links(src__deep__inner="../../../outside"),
    "retargeted to an absolute path": links(src__deep__inner="/tmp"),
    "renamed": renamed,
    "through a link to the root": links(link="root/../outside"),
    "through a link upwards": links(link="src/up/../outside"),
    "through a link of another case": links(link="src/deep/up/../outside"),
    "through a new link": links(src__deep__hop="../..", link="src/deep/hop/../outside"),
    "an old link through a retargeted one": lambda box: (
        link(box, "src/deep/inner", "../../root"),
        link(box, "src/deep/more", "inner/../outside"),
    ),
    "a file becomes a link": links(**{"README.md": "../outside"}),
}


@pytest.fixture
def linked(box: Sandbox) -> Sandbox:
    for path, target in INSIDE.items():
        link(box, path, target)
    box.ok("patch", "new", "links", "-m", "links")
    return box


@pytest.mark.parametrize("how", ["new", "refresh", "commit", "edit", "later"])
@pytest.mark.parametrize("case", OUT)
def test_a_link_out_of_the_tree_is_refused(linked: Sandbox, case: str, how: str) -> None:
    if how == "edit":
        linked.ok("patch", "edit", "links")
    if how == "later":
        linked.ok("patch", "new", "bad")
    OUT[case](linked)
    if how == "commit":
        linked.git("commit", "-qm", "bad : a link")
    before = linked.state()
    command = {"new": ("new", "bad"), "edit": ("continue",), "later": ("continue",)}.get(how, ("refresh",))
    told = linked.refused("patch", *command)
    assert "a link out of the tree" in told
    assert linked.state() == before


@pytest.mark.parametrize("case", OUT)
def test_a_patch_file_with_such_a_link_is_refused(linked: Sandbox, case: str) -> None:
    """As another tool or an older pyggml has written it."""
    OUT[case](linked)
    linked.git("commit", "-qm", "bad : a link")
    mail = linked.root / "bad.patch"
    mail.write_text(linked.git("format-patch", "--stdout", "-M", "-1") + "\n")
    linked.git("reset", "-q", "--hard", "HEAD~1")
    before = linked.state()
    assert "a link out of the tree" in linked.refused("patch", "import", str(mail))
    assert linked.state() == before


def test_links_inside_are_kept_wherever_they_go(linked: Sandbox) -> None:
    link(linked, "src/deep/inner", "../scale.c")
    link(linked, "circle", "circle")
    link(linked, "src/deep/far/away", "../../../root/src/deep/../scale.c")
    linked.ok("patch", "new", "more", "-m", "more")
    tree = linked.git("rev-parse", "HEAD^{tree}")
    linked.ok("patch", "unapply")
    linked.ok("patch", "apply")
    assert linked.git("rev-parse", "HEAD^{tree}") == tree
    assert linked.ok("patch", "verify").code == 0


def test_a_link_of_upstream_that_leads_out_is_no_obstacle(box: Sandbox) -> None:
    """Only the links that a patch makes are judged: here, seen from one commit to the next."""
    from pyggml.errors import PyggmlError
    from pyggml.git import Git
    from pyggml.series.stack.links import check_links

    git = Git(box.tree / ".git", box.tree)
    link(box, "bad", "../outside")
    old = box.git("write-tree")
    link(box, "good", "README.md")
    good = box.git("write-tree")
    check_links(git, old, good, "a patch")
    link(box, "bad", "../outside/more")
    with pytest.raises(PyggmlError, match="a patch: it makes 'bad' a link out of the tree"):
        check_links(git, good, box.git("write-tree"), "a patch")
