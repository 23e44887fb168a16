"""What is compiled follows contents: patches off and on again compile nothing, other contents always do."""

from __future__ import annotations

import os
from pathlib import Path

from pyggml.builder.times import changed_since
from pyggml.git import Git
from tests.builder.test_up import project, pyggml, pytestmark

__all__ = ["project", "pytestmark"]


def run(root: Path, *args: str) -> str:
    done = pyggml(root, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def steps(root: Path, *args: str) -> int:
    import json

    return int(json.loads(run(root, "build", "--json", *args))["steps"])


def answer(root: Path, variant: str = "p1-cpu") -> int:
    """The exit status of the program that checks for the answer 42."""
    import subprocess

    return subprocess.run([root / ".pyggml/build" / variant / "bin/test-alloc"], check=False).returncode


def patched(root: Path) -> Path:
    run(root, "vendor", "fetch")
    lib = root / "vendor/llama.cpp/lib.c"
    lib.write_text(lib.read_text().replace("return 42", "return 43"))
    config = Path(os.environ["HOME"]) / ".gitconfig"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    run(root, "patch", "new", "wrong", "-m", "lib : a wrong answer")
    return root


def test_off_and_on_again_compiles_nothing(project: Path) -> None:
    patched(project)
    assert steps(project) > 3
    assert answer(project) == 1
    run(project, "patch", "unapply")
    run(project, "patch", "apply")
    assert steps(project) == 0
    assert answer(project) == 1


def test_other_contents_are_compiled_even_if_their_time_is_old(project: Path) -> None:
    patched(project)
    steps(project)
    run(project, "patch", "unapply")
    lib = project / "vendor/llama.cpp/lib.c"
    os.utime(lib, ns=(10**18, 10**18))
    assert 0 < steps(project) <= 3
    assert answer(project) == 0
    run(project, "patch", "apply")
    assert 0 < steps(project) <= 3
    assert answer(project) == 1


def test_an_edit_and_its_undoing_between_two_builds(project: Path) -> None:
    patched(project)
    steps(project)
    lib = project / "vendor/llama.cpp/lib.c"
    text = lib.read_text()
    lib.write_text(text.replace("43", "42"))
    assert 0 < steps(project) <= 3
    assert answer(project) == 0
    lib.write_text(text)
    assert 0 < steps(project) <= 3
    assert answer(project) == 1
    lib.write_text(text.replace("43", "42"))
    lib.write_text(text)
    assert steps(project) == 0


def test_two_variants_keep_apart(project: Path) -> None:
    """One variant is built with the patch, the other without; each must follow its own memory."""
    patched(project)
    steps(project)
    run(project, "patch", "unapply")
    steps(project, "--variant", "other")
    run(project, "patch", "apply")
    assert steps(project) == 0
    assert (answer(project), answer(project, "other")) == (1, 0)
    assert 0 < steps(project, "--variant", "other") <= 3
    assert answer(project, "other") == 1
    run(project, "patch", "unapply")
    assert 0 < steps(project) <= 3
    assert answer(project) == 0


def test_a_build_that_failed_between_is_not_mistaken(project: Path) -> None:
    patched(project)
    steps(project)
    lib = project / "vendor/llama.cpp/lib.c"
    good = lib.read_text()
    lib.write_text(good.replace("43", "42"))
    broken = project / "vendor/llama.cpp/alloc.cpp"
    text = broken.read_text()
    broken.write_text(text + "\n#error no\n")
    assert pyggml(project, "build").returncode == 1
    lib.write_text(good)
    broken.write_text(text)
    assert steps(project) > 0
    assert answer(project) == 1


def test_files_that_differ_from_the_build_are_counted(project: Path) -> None:
    patched(project)
    steps(project)
    tree = project / "vendor/llama.cpp"
    built, git = project / ".pyggml/build/p1-cpu", Git(tree / ".git", tree)
    assert changed_since(git, built) == 0
    (tree / "alloc.cpp").write_text("int main() {}\n")
    assert changed_since(git, built) == 1
    run(project, "patch", "new", "empty", "-m", "alloc : nothing")
    assert changed_since(git, built) == 1
    run(project, "patch", "unapply", "--to", "0")
    # Neither patch: lib.c differs now, and alloc.cpp is as it was compiled.
    assert changed_since(git, built) == 1
