"""`pyggml patch files`, `diff` and `patches`: what patches contain."""

from __future__ import annotations

from dataclasses import asdict

import click

from pyggml.cli.common import current_project, json_option, print_json
from pyggml.cli.patch_output import pin_option


@click.command()
@click.argument("which", required=False)
@pin_option
@json_option
def files(which: str | None, pin: str | None, as_json: bool) -> None:
    """List the files that patch WHICH changes; by default those of the topmost applied patch."""
    from pyggml.series.editing.contents import patch_files, patch_number
    from pyggml.series.worktree.workspace import open_workspace

    work = open_workspace(current_project(), pin)
    number = patch_number(work, which)
    rows = patch_files(work, number)
    if as_json:
        name = work.series.patches[number - 1].name
        print_json({"number": number, "name": name, "files": [asdict(row) for row in rows]})
        return
    for row in rows:
        click.echo(
            f"{row.kind:<8}  {row.path}" + (f"   (was {row.old_path})" if row.old_path is not None else "")
        )


@click.command()
@click.argument("which", required=False)
@click.option("--path", "-P", "paths", multiple=True, metavar="PATH", help="Only this file or directory.")
@pin_option
@json_option
def diff(which: str | None, paths: tuple[str, ...], pin: str | None, as_json: bool) -> None:
    """Show the diff of patch WHICH; without WHICH, what is in no patch yet.

    What is in no patch yet is the work tree against the topmost applied patch, your commits included:
    `pyggml patch refresh` would write that into patch files.
    """
    from pyggml.series.editing.contents import patch_diff, pending_diff, source_path
    from pyggml.series.worktree.workspace import open_workspace

    work = open_workspace(current_project(), pin)
    only = [source_path(work, path) for path in paths]
    number = None if which is None else work.series.find(which)
    text = pending_diff(work, only) if number is None else patch_diff(work, number, only)
    if as_json:
        name = None if number is None else work.series.patches[number - 1].name
        print_json({"number": number, "name": name, "diff": text.decode("utf-8", "replace")})
    else:
        click.echo(text, nl=False)


@click.command()
@click.argument("path", metavar="PATH[:LINE]")
@pin_option
@json_option
def patches(path: str, pin: str | None, as_json: bool) -> None:
    """Find the patches that touch PATH, or the one that line LINE of it comes from.

    PATH is a file or directory of the source. A line is counted in the work tree, as it is now. Patches that
    are not applied are found by PATH only; they are marked with a minus sign.
    """
    from pyggml.series.editing.contents import line_origin, source_path, split_line, touching_patches
    from pyggml.series.worktree.workspace import open_workspace

    work = open_workspace(current_project(), pin)
    name, line = split_line(path)
    name = source_path(work, name)
    if line is None:
        rows = touching_patches(work, name)
        if as_json:
            print_json({"path": name, "patches": [asdict(row) for row in rows]})
        for row in rows if not as_json else ():
            click.echo(f"{'+' if row.applied else '-'} {row.number:3d}  {row.name:<28}  {row.kind}")
        if not rows and not as_json:
            click.echo(f"no patch touches {name}")
        return
    origin = line_origin(work, name, line)
    if as_json:
        print_json({"path": name, "line": line, **asdict(origin)})
        return
    where = {
        "upstream": "no patch: it is upstream's",
        "commit": f"no patch yet: your commit {origin.subject!r}",
        "edit": "no patch yet: it is edited in the work tree",
    }
    if (found := origin.patch) is not None:
        click.echo(f"{found.number:4d}  {found.name:<28}  {origin.subject}")
    else:
        click.echo(where[origin.origin])
