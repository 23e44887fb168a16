"""Rebase Ollama's patch series on llama.cpp from one base to the next, and compare with what Ollama has.

Usage: python tools/ollama_series.py REPOSITORY UPDATE [--work DIRECTORY]

REPOSITORY is a clone of github.com/ollama/ollama, UPDATE a commit of it that moved the base (`git log Makefile.sync`
lists them, e.g. 0cf7794b1, c68f367ef, 1a19df1f3). Ollama keeps the patched sources and the patches: taking the
patches off gives the base before and after the update, without llama.cpp's own history. Only the files that Ollama
keeps take part; a patch of others alone is left out. What is compared, and how, is as in `compare_series.py`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from compare_series import Package, git, report

from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.foreign import read_foreign
from pyggml.series.stack.series_file import slug

PARTS = {"llama/llama.cpp": "", "ml/backend/ggml/ggml": "ggml"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=Path)
    parser.add_argument("update")
    parser.add_argument("--work", type=Path, help="keep everything in this new directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pyggml-series-") as scratch:
        work = Path(scratch) if options.work is None else options.work.resolve()
        work.mkdir(parents=True, exist_ok=options.work is None)
        repository = options.repository.resolve()
        older, newer = (
            package(repository, commit, work) for commit in (f"{options.update}^", options.update)
        )
        return report(older, newer, work)


def package(repository: Path, commit: str, work: Path) -> Package:
    """The base and the series of one commit of Ollama."""
    commit = git(repository, "rev-parse", "--short", f"{commit}^{{commit}}")
    base = re.search(r"(?m)^FETCH_HEAD=(\w{7})", git(repository, "show", f"{commit}:Makefile.sync"))
    assert base is not None
    place = work / f"ollama-{commit}"
    tree, series = place / "tree", place / "patches"
    for directory in (tree, series):
        directory.mkdir(parents=True)
    extract(repository, commit, place)
    for part, where in PARTS.items():
        for path in sorted((place / part).rglob("*")):
            if path.is_file() and path.suffix != ".go" and path.name != ".rsync-filter":
                target = tree / where / path.relative_to(place / part)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
    git(tree, "init", "-q")
    git(tree, "-c", "core.autocrlf=false", "add", "-A", "-f", ".")
    patches = sorted((place / "llama" / "patches").glob("*.patch"))
    for patch in reversed(patches):
        if data := taken_off(tree, patch):
            (series / patch.name).write_bytes(data)
    kept = sorted(path.name for path in series.glob("*.patch"))
    (series / "series").write_text("".join(f"{name}\n" for name in kept))
    archive = place / "base.tar"
    git(tree, "archive", "--prefix=base/", f"--output={archive}", git(tree, "write-tree"))
    files: dict[str, Path] = {}
    for foreign in read_foreign((series,)):
        files[slug(foreign.title, files)] = Path(foreign.label)
    return Package(f"ollama {commit}", f"{base[1]}", None, archive, series, files)


def extract(repository: Path, commit: str, place: Path) -> None:
    done = subprocess.run(
        ["git", "archive", commit, *PARTS, "llama/patches"], cwd=repository, check=True, capture_output=True
    )
    with tarfile.open(fileobj=BytesIO(done.stdout)) as tar:
        tar.extractall(place, filter="data")


def taken_off(tree: Path, patch: Path) -> bytes:
    """Take a patch off the tree, file by file; returns the patch with those files that are in it."""
    data = patch.read_bytes()
    head = data[: data.index(b"diff --git ")]
    kept = []
    for diff in parse_diff(data):
        text = b"".join(diff.lines())
        try:
            git(tree, "apply", "-R", "--cached", "-", stdin=text)
        except RuntimeError as error:
            if diff.new is not None and git(tree, "ls-files", "--", diff.new.decode()):
                print(f"{patch.name}: left out: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        kept.append(text)
    return head + b"".join(kept) if kept else b""


if __name__ == "__main__":
    sys.exit(main())
