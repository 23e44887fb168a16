"""`pyggml patch`: each command calls one function of `pyggml.series`."""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pyggml.cli.common import LazyGroup, current_project, json_option, print_json, say
from pyggml.cli.patch_output import note_untracked, pin_option, print_change, reopen_option
from pyggml.errors import PyggmlError, UsageError
from pyggml.series.worktree.sequencer import EDITING, REBASING

LAZY = {
    "rebase": ("pyggml.cli.rebase:rebase", "Rebase the series onto a newer pin."),
    "range-diff": ("pyggml.cli.rebase:range_diff", "Compare two series patch by patch."),
    "prove": ("pyggml.cli.prove:prove", "Run each patch's proof without the patch and with it."),
    "frontier": ("pyggml.cli.frontier:frontier", "Find where in a row of upstream trees each patch breaks."),
    "bisect": ("pyggml.cli.prove:bisect", "Find the first patch at which a command's result changes."),
    "files": ("pyggml.cli.patch_contents:files", "List the files that a patch changes."),
    "diff": ("pyggml.cli.patch_contents:diff", "Show the diff of a patch, or what is in no patch yet."),
    "reword": ("pyggml.cli.patch_reshape:reword", "Change the message of a patch."),
    "squash": ("pyggml.cli.patch_reshape:squash", "Make one patch of several."),
    "split": ("pyggml.cli.patch_reshape:split", "Make two patches of one, by files or by hunks."),
    "renumber": ("pyggml.cli.patch_merge:renumber", "Number the patch files in the order of series.toml."),
    "install-merge-driver": (
        "pyggml.cli.patch_merge:install_merge_driver",
        "Let git merge series.toml patch by patch.",
    ),
    "merge-driver": ("pyggml.cli.patch_merge:merge_driver", "Merge three series.toml; git calls it."),
    "patches": ("pyggml.cli.patch_contents:patches", "Find the patches that touch a file or a line."),
}
READING = ("list", "show", "verify", "export", "range-diff", "files", "diff", "patches")
SYMBOLS = {"applied": "+", "unapplied": "-"}


@click.group(cls=LazyGroup, lazy=LAZY)
@click.pass_context
def patch(ctx: click.Context) -> None:
    """The numbered series of patches on the pinned source.

    \b
    A day's work:
      pyggml patch apply              # bring the series into vendor/<upstream>
      pyggml patch edit 5             # stop at one patch, edit the source
      pyggml patch continue           # fold the edits in, put the later patches back
      pyggml patch refresh            # or: write commits and edits into the files
      pyggml undo                     # take the last of these back
    """
    # Commands that only read carry on with a note; those that change the series refuse. Without a project,
    # the command itself says so.
    with contextlib.suppress(PyggmlError):
        if ctx.invoked_subcommand in READING and (what := REBASING.what(current_project())):
            say(f"note: {what}")


@patch.command("list")
@pin_option
@json_option
def list_(pin: str | None, as_json: bool) -> None:
    """List the patches of the series in order: number, name, subject."""
    from pyggml.series.worktree.status import subjects
    from pyggml.series.worktree.workspace import open_workspace

    work = open_workspace(current_project(), pin)
    rows = [
        {
            "number": number,
            "name": entry.name,
            "file": entry.file(number),
            "subject": subject,
            "purpose": entry.purpose,
            "drop_when": entry.drop_when,
            "proof": list(entry.proof),
            "tree": entry.tree,
        }
        for number, (entry, subject) in enumerate(zip(work.series.patches, subjects(work), strict=True), 1)
    ]
    if as_json:
        print_json({"pin": work.pin.name, "patches": rows})
        return
    if not rows:
        click.echo(f"the series on pin {work.pin.name} is empty; begin it with: pyggml patch new NAME")
    for row in rows:
        click.echo(f"{row['number']:4d}  {row['name']:<28}  {row['subject']}")


@patch.command("status")
@pin_option
@json_option
def status_(pin: str | None, as_json: bool) -> None:
    """Show where the work tree is in the series, and what is edited there."""
    from pyggml.series.worktree.status import series_status

    status = series_status(current_project(), pin)
    if as_json:
        print_json(asdict(status))
        return
    click.echo(f"pin {status.pin}: {status.state}, {status.applied} of {status.total} patches applied")
    for row in status.patches:
        click.echo(f"{SYMBOLS[row.state]} {row.number:3d}  {row.name:<28}  {row.subject}")
    for subject in status.on_top:
        click.echo(f"*   commit in no patch file: {subject}")
    for path in status.edits:
        click.echo(f"    edited: {path}")
    for path in status.untracked[:5]:
        click.echo(f"    untracked: {path}")
    if len(status.untracked) > 5:
        click.echo(f"    … and {len(status.untracked) - 5} more untracked files")
    if status.elsewhere:
        click.echo(
            f"The work tree is on pin {status.elsewhere}; `pyggml patch apply --pin {status.pin}` moves it."
        )
    if status.interrupted:
        click.echo(f"`{status.interrupted}` is at work or was killed half-way: the next command finishes it.")
    for what, sequencer in ((status.rebase, REBASING), (status.operation, EDITING)):
        if what:
            click.echo(f"{what[0].upper()}{what[1:]}.\n{sequencer.choices}")
    if status.outdated and not status.operation:
        click.echo("The patch files have changed since they were applied: `pyggml patch apply` follows them.")
    elif status.state in ("dirty", "diverged") and not (status.operation or status.elsewhere):
        click.echo("`pyggml patch refresh` writes commits and edits into the patch files.")


def _moved(result: Any, as_json: bool, verb: str) -> None:
    if as_json:
        print_json(asdict(result))
        return
    if result.recovered:
        say(f"finished `{result.recovered}`, which had been killed half-way")
    where = f"{result.applied} of {result.total} patches applied on pin {result.pin}, HEAD {result.head[:12]}"
    click.echo(f"{verb}: {where}" if result.changed else f"nothing to do: {where}")


@patch.command()
@click.option("--to", type=int, metavar="N", help="Apply only the first N patches.")
@pin_option
@json_option
def apply(to: int | None, pin: str | None, as_json: bool) -> None:
    """Apply the series to the work tree, each patch as one commit.

    The commits have the same ids on every machine. Applying again does nothing. Files that no patch touches
    keep their times, so that the next build compiles only what changed.
    """
    from pyggml.series.worktree.apply import apply_series

    _moved(apply_series(current_project(), pin, to), as_json, "applied")


@patch.command()
@click.option("--to", type=int, default=0, metavar="N", help="Keep the first N patches applied.")
@pin_option
@json_option
def unapply(to: int, pin: str | None, as_json: bool) -> None:
    """Take patches off again: all of them, or all but the first N."""
    from pyggml.series.worktree.apply import unapply_series

    _moved(unapply_series(current_project(), pin, to), as_json, "unapplied")


@patch.command()
@click.argument("which", required=False, metavar="[N|NAME]")
@click.option("--all", "-a", "everything", is_flag=True, help="Apply all of the series.")
@pin_option
@json_option
def push(which: str | None, everything: bool, pin: str | None, as_json: bool) -> None:
    """Apply the next patch, the next N, or all up to NAME; as quilt's command of this name."""
    from pyggml.series.worktree.apply import apply_series, push_patches

    _one_of(which, everything)
    project = current_project()
    _moved(
        apply_series(project, pin) if everything else push_patches(project, which, pin), as_json, "applied"
    )


@patch.command()
@click.argument("which", required=False, metavar="[N|NAME]")
@click.option("--all", "-a", "everything", is_flag=True, help="Take all of the series off.")
@pin_option
@json_option
def pop(which: str | None, everything: bool, pin: str | None, as_json: bool) -> None:
    """Take the topmost patch off, the topmost N, or all above NAME; as quilt's command of this name."""
    from pyggml.series.worktree.apply import pop_patches, unapply_series

    _one_of(which, everything)
    project = current_project()
    _moved(
        unapply_series(project, pin) if everything else pop_patches(project, which, pin), as_json, "unapplied"
    )


def _one_of(which: str | None, everything: bool) -> None:
    if which and everything:
        raise UsageError(f"{which} and --all contradict each other", "Give one of them.")


@patch.command()
@click.argument("name")
@click.option("--message", "-m", help="The commit message; by default a template to fill in.")
@pin_option
@reopen_option
@json_option
def new(name: str, message: str | None, pin: str | None, as_json: bool) -> None:
    """Make a patch NAME of the edits in the work tree, on top of the patches applied now.

    Without edits the patch is only begun: edit, then `pyggml patch continue`. New files count after
    `git add`. To fill in the message: `git commit --amend` in the work tree, then `pyggml patch refresh`.
    """
    from pyggml.series.editing.edit import new_patch

    print_change(as_json, new_patch, current_project(), name, message, pin)
    note_untracked(pin)


@patch.command()
@click.argument("which")
@pin_option
@reopen_option
@json_option
def edit(which: str, pin: str | None, as_json: bool) -> None:
    """Stop at patch WHICH (number or name) to change it; `pyggml patch continue` goes on."""
    from pyggml.series.editing.edit import edit_patch

    print_change(as_json, edit_patch, current_project(), which, pin)


@patch.command("continue")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--dropped", is_flag=True, help="The patches NAME were removed on purpose; see `patch refresh`."
)
@json_option
def continue_(names: tuple[str, ...], dropped: bool, as_json: bool) -> None:
    """Fold the edits in and put the later patches back on top; exit code 3 at a conflict."""
    from pyggml.series.editing.edit import continue_operation

    if dropped != bool(names):
        raise UsageError("--dropped and NAME go together", "E.g.: pyggml patch continue --dropped NAME")
    print_change(as_json, continue_operation, current_project(), names)
    note_untracked(None)


@patch.command()
@json_option
def abort(as_json: bool) -> None:
    """Go back to before the `edit`, `new` or conflict that waits; `pyggml undo` brings the edits back."""
    from pyggml.series.editing.edit import abort_operation

    print_change(as_json, abort_operation, current_project())


@patch.command()
@click.argument("paths", nargs=-1, metavar="[PATH|NAME]...")
@click.option(
    "--patch", "-p", "which", metavar="NAME", help="Fold the edits into this patch, not the topmost one."
)
@click.option(
    "--from-files",
    is_flag=True,
    help="Accept patch files that were edited by hand, and record their trees anew.",
)
@click.option(
    "--dropped",
    is_flag=True,
    help="The patches NAME are missing on purpose, e.g. after `git rebase -i`: remove their files.",
)
@pin_option
@reopen_option
@json_option
def refresh(
    paths: tuple[str, ...],
    which: str | None,
    from_files: bool,
    dropped: bool,
    pin: str | None,
    as_json: bool,
) -> None:
    """Write commits, fix-ups and edits of the work tree back into the patch files.

    Edits go into the topmost applied patch, `fixup!` commits into the patch they name, and other commits
    on top become new patches. With -p, edits go into patch NAME and the later patches are put back on top;
    with PATHs, only the edits there are taken, and the others stay in the work tree.

    \b
    Examples:
      pyggml patch refresh                           all commits and edits
      pyggml patch refresh -p v-head-size            the edits, into one patch
      pyggml patch refresh ggml/src                  the edits below one directory
      pyggml patch refresh --dropped first second    after `git rebase -i` dropped the commits of these patches
      pyggml patch refresh --from-files              after a patch file was edited by hand
    """
    from pyggml.series.editing.contents import source_path
    from pyggml.series.editing.edit import refresh as refresh_series
    from pyggml.series.editing.from_files import refresh_from_files
    from pyggml.series.editing.refresh_into import refresh_into
    from pyggml.series.worktree.workspace import open_workspace

    project = current_project()
    if from_files and (paths or which or dropped):
        raise UsageError(
            "--from-files takes neither a PATH nor -p nor --dropped", "It reads every patch file again."
        )
    if dropped and (which or not paths):
        raise UsageError(
            "--dropped takes the names of patches, and no -p", "E.g.: pyggml patch refresh --dropped NAME"
        )
    if dropped:
        print_change(as_json, refresh_series, project, pin, dropped=paths)
    elif paths or which:
        only = [source_path(open_workspace(project, pin), path) for path in paths]
        print_change(as_json, refresh_into, project, which, only, pin)
    else:
        print_change(as_json, refresh_from_files if from_files else refresh_series, project, pin)
    note_untracked(pin)


@patch.command()
@click.argument("which")
@click.argument("name")
@pin_option
@reopen_option
@json_option
def rename(which: str, name: str, pin: str | None, as_json: bool) -> None:
    """Give patch WHICH another NAME in the series; its commit stays the same."""
    from pyggml.series.editing.reorder import rename_patch

    print_change(as_json, rename_patch, current_project(), which, name, pin)


@patch.command()
@click.argument("which")
@pin_option
@reopen_option
@json_option
def drop(which: str, pin: str | None, as_json: bool) -> None:
    """Remove patch WHICH from the series; the later ones move down."""
    from pyggml.series.editing.reorder import drop_patch

    print_change(as_json, drop_patch, current_project(), which, pin)


@patch.command()
@click.argument("which")
@click.argument("to", type=int)
@pin_option
@reopen_option
@json_option
def move(which: str, to: int, pin: str | None, as_json: bool) -> None:
    """Move patch WHICH to place TO of the series."""
    from pyggml.series.editing.reorder import move_patch

    print_change(as_json, move_patch, current_project(), which, to, pin)


@patch.command()
@click.argument("which")
@pin_option
@json_option
def show(which: str, pin: str | None, as_json: bool) -> None:
    """Print the file of patch WHICH."""
    from pyggml.series.worktree.workspace import open_workspace

    work = open_workspace(current_project(), pin)
    number = work.series.find(which)
    entry = work.series.patches[number - 1]
    data = work.patch_file(number)
    if as_json:
        print_json({"number": number, **asdict(entry), "text": data.decode("utf-8", "replace")})
    else:
        click.echo(data, nl=False)


@patch.command()
@pin_option
@json_option
def verify(pin: str | None, as_json: bool) -> None:
    """Check that every patch file, applied again, gives its recorded tree, author and message."""
    from pyggml.series.exchange.verify_files import verify_series

    report = verify_series(current_project(), pin)
    if as_json:
        print_json(asdict(report))
    else:
        for row in report.patches:
            click.echo(f"{'ok ' if row.ok else 'BAD'}  {row.file}  {row.detail}")
        click.echo(
            f"pin {report.pin}: {sum(r.ok for r in report.patches)} of {len(report.patches)} patches verified"
        )
    if not report.ok:
        raise SystemExit(1)


@patch.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@pin_option
@json_option
def export(directory: Path, pin: str | None, as_json: bool) -> None:
    """Write the series to DIRECTORY, numbered and with a cover letter, ready to send upstream.

    The files are read back first: unless they give the same trees, authors and messages, nothing is written.
    """
    from pyggml.series.exchange.export import export_series

    made = export_series(current_project(), directory, pin)
    if as_json:
        print_json({"directory": str(directory), "files": [*made.files], "keep_cr": made.keep_cr})
        return
    click.echo(f"{len(made.files)} files in {directory}")
    if made.keep_cr:
        click.echo("They change lines that end in CRLF: apply them with `git am --keep-cr`.")


@patch.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "-p",
    "strip",
    type=click.IntRange(min=0),
    metavar="N",
    help="Drop N leading components of every path; by default this is found out.",
)
@click.option("--scissors", is_flag=True, help="Leave out what stands above a line `-- >8 --` in a message.")
@click.option("--mboxrd", is_flag=True, help="In mailboxes, take one `>` off lines that begin with `>From `.")
@click.option(
    "--directory", metavar="DIR", default="", help="Put DIR in front of every path, as `git am` does."
)
@click.option(
    "--replace",
    "replaced",
    metavar="NAME",
    help="Put the one patch in the place of NAME, the later ones on top.",
)
@click.option(
    "--3way",
    "-3",
    "three_way",
    is_flag=True,
    help="Merge a patch that does not apply, by the files that its index lines name, as `git am -3` does.",
)
@pin_option
@reopen_option
@json_option
def import_(
    files: tuple[Path, ...],
    strip: int | None,
    scissors: bool,
    mboxrd: bool,
    directory: str,
    replaced: str | None,
    three_way: bool,
    pin: str | None,
    as_json: bool,
) -> None:
    """Import patches, in order, on top of the series.

    FILES are patch files, mails, mailboxes, a quilt `series` file, or directories that hold a `series` file or
    numbered patches. Nothing is guessed: a hunk that fits in several places is refused, and so are paths that
    can be read with a prefix and without one, and a mail with text between its diffs.

    With --3way a patch that does not apply is merged. A conflict stops (exit code 3): resolve it, then go on with
    `pyggml patch continue`, or give the whole import up with `pyggml patch abort`.

    \b
    Examples:
      pyggml patch import fix.patch
      pyggml patch import --3way ../fork/*.patch      made on another version
      pyggml patch import --directory ggml series.mbox
      pyggml patch import --replace log-at-exit v2.patch
    """
    from pyggml.series.exchange.import_patches import import_patches, replace_patch
    from pyggml.series.patchfile.foreign import Reading

    below = posixpath.normpath(directory) if directory else "."
    if below.startswith(("/", "..")):
        raise UsageError(
            f"{directory} is outside the source", "Give a directory of the source, e.g. --directory ggml"
        )
    reading = Reading(strip, scissors, mboxrd, "" if below == "." else below)
    if replaced:
        print_change(
            as_json, replace_patch, current_project(), replaced, files, pin, reading, three_way=three_way
        )
    else:
        print_change(as_json, import_patches, current_project(), files, pin, reading, three_way=three_way)
