"""patch push and pop: up and down the series by count or by name, as in quilt."""

from __future__ import annotations

from series_helpers import Sandbox


def test_pop_and_push(three: Sandbox) -> None:
    for args, left in (
        (("pop",), 2),
        (("push",), 3),
        (("pop", "2"), 1),
        (("push", "2"), 3),
        (("pop", "first"), 1),
        (("push", "third"), 3),
        (("pop", "--all"), 0),
        (("push", "-a"), 3),
    ):
        assert f"{left} of 3 patches applied" in three.ok("patch", *args).out
        assert three.status()["applied"] == left
    assert three.ok("patch", "pop", "--json").json["applied"] == 2
    three.ok("undo")
    assert three.status()["applied"] == 3


def test_what_push_and_pop_refuse(three: Sandbox) -> None:
    before = three.state()
    for args in (("push",), ("push", "first"), ("pop", "4"), ("pop", "third")):
        assert f"nothing to {args[0]}" in three.refused("patch", *args)
    assert "no patch 'ninth'" in three.refused("patch", "pop", "ninth")
    assert "contradict" in three.refused("patch", "pop", "2", "--all", code=2)
    assert three.state() == before
    three.replace("README.md", "downstream\n", "edited\n")
    assert "README.md edited" in three.refused("patch", "pop")
