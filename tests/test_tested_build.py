"""What the header says about the build under test, and how other processes are told."""

from __future__ import annotations

import pytest

from tests.tested_build import TestedBuild, remember, remembered

HALF = TestedBuild("p-cpu", 9, ("ten", "eleven"), {"tests/test_a.py::test_b": ("ten",)}, 0)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (0, "p-cpu, 9 of 11 patches"),
        (1, "p-cpu, 9 of 11 patches; 1 file was changed since (pyggml build, or --prepare)"),
        (134, "p-cpu, 9 of 11 patches; 134 files were changed since (pyggml build, or --prepare)"),
    ],
)
def test_the_header_counts_patches_and_changed_files(changed: int, text: str) -> None:
    assert str(TestedBuild(HALF.variant, HALF.patches, HALF.missing, HALF.proofs, changed)) == text


def test_workers_are_told_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_TESTS_BUILD", "")
    remember(HALF)
    told = remembered()
    assert told is not None
    assert (str(told), list(told.missing), told.proofs) == (
        str(HALF),
        list(HALF.missing),
        {"tests/test_a.py::test_b": ["ten"]},
    )
