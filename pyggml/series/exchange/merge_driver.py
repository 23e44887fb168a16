"""The merge driver that lets git merge two branches' `series.toml`, and its installation in a clone."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.files import with_lines, write_atomic
from pyggml.git import GitError
from pyggml.git.runner import run_outside
from pyggml.project import Project
from pyggml.series.stack.series_merge import merge_series

ATTRIBUTES_FILE = ".gitattributes"
_NAME = "pyggml-series"


def with_attributes(before: bytes) -> bytes:
    """The content of `.gitattributes` with the line that names the driver."""
    lines = (f"/patches/*/series.toml merge={_NAME}",)
    comment = (
        "# pyggml: see `pyggml patch install-merge-driver --help`; a clone without it merges line by line"
    )
    return with_lines(before, comment, lines)


def merge_files(base: Path, ours: Path, theirs: Path) -> bool:
    """Merge three versions of a `series.toml` into the file `ours`, as git asks its merge drivers to.

    What is no valid `series.toml` is merged line by line, as git does without a driver.

    Returns:
        whether there are no conflicts.

    Raises:
        PyggmlError: git cannot merge the lines either.
    """
    try:
        # Bytes, so that line ends stay as they are.
        texts = (path.read_bytes().decode("utf-8") for path in (base, ours, theirs))
        merged = merge_series(*texts)
    except ValueError:
        return _merge_lines(base, ours, theirs)
    ours.write_bytes(merged.text.encode("utf-8"))
    return not merged.conflict


def _merge_lines(base: Path, ours: Path, theirs: Path) -> bool:
    labels = ("-L", "ours", "-L", "base", "-L", "theirs")
    try:
        run_outside("merge-file", *labels, "--", str(ours), str(base), str(theirs))
    except GitError as error:
        if error.status > 127:
            raise
        return False  # the number of conflicts
    return True


def install_merge_driver(project: Project) -> tuple[Path, bool]:
    """Configure the driver in this clone of the project's repository, and write `.gitattributes` if it has no line.

    Returns:
        the repository's configuration file, and whether `.gitattributes` was written.

    Raises:
        PyggmlError: the project is in no git repository, or its configuration cannot be written.
    """
    try:
        common = run_outside("rev-parse", "--git-common-dir", cwd=project.root, user_config=True)
    except GitError as error:
        raise PyggmlError(
            f"{project.root} is in no git repository: {error.stderr.splitlines()[-1] if error.stderr else ''}",
            "Make one first: git init",
        ) from error
    config = (project.root / common.decode("utf-8", "surrogateescape").strip() / "config").resolve()
    for key, value in (
        ("name", "series.toml of pyggml, merged patch by patch"),
        ("driver", _command(sys.executable)),
    ):
        run_outside("config", "--file", str(config), f"merge.{_NAME}.{key}", value)
    file = project.root / ATTRIBUTES_FILE
    before = file.read_bytes() if file.is_file() else b""
    after = with_attributes(before)
    if after != before:
        write_atomic(file, after)
    return config, after != before


def _command(python: str) -> str:
    """The driver as git's configuration has it: a line for `sh`.

    Without that Python any more, git's own merge of lines does it: an error would leave one side without marks.
    """
    path = shlex.quote(python).replace("%", "%%")
    lines = "exec git merge-file -L ours -L base -L theirs %A %O %B"
    return f"test -x {path} || {lines}; exec {path} -P -m pyggml patch merge-driver %O %A %B %P"
