"""`pyggml patch rebase` and `pyggml patch range-diff`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyggml.cli.common import current_project, json_option, print_json, say
from pyggml.errors import PyggmlError, UsageError

if TYPE_CHECKING:
    from pyggml.project import Project
    from pyggml.series.rebasing.run import RebaseHooks, RebaseResult
    from pyggml.series.rebasing.verdict import RebasedPatch


@click.command()
@click.option("--onto", metavar="PIN", help="The newer pin; fetch it first (pyggml vendor fetch PIN).")
@click.option(
    "--from", "source", metavar="PIN", help="The pin that the series is on; by default the default pin."
)
@click.option("--continue", "go", is_flag=True, help="Go on after a stop.")
@click.option(
    "--confirm", is_flag=True, help="With --continue: hunks that are in another function now belong there."
)
@click.option("--remove", multiple=True, metavar="PATH", help="With --continue: PATH was removed on purpose.")
@click.option("--replace", is_flag=True, help="Overwrite a series that the new pin has already.")
@click.option("--skip", is_flag=True, help="Leave out the patch it stopped at, and go on.")
@click.option("--upstream", is_flag=True, help="With --skip: because upstream has it.")
@click.option("--reason", metavar="TEXT", help="With --skip: why, for the record.")
@click.option("--abort", "give_up", is_flag=True, help="Give up the rebase; everything is as it was before.")
@click.option("--edit-todo", "plan", is_flag=True, help="Change the plan in $EDITOR: order, edit, skip.")
@click.option(
    "--record", is_flag=True, help="Record how the new pin's series, as it is, comes from the old one."
)
@click.option(
    "--compile", "compiling", is_flag=True, help="Build after each patch; stop at the first failure."
)
@json_option
def rebase(
    onto: str | None,
    source: str | None,
    go: bool,
    confirm: bool,
    remove: tuple[str, ...],
    replace: bool,
    skip: bool,
    upstream: bool,
    reason: str | None,
    give_up: bool,
    plan: bool,
    record: bool,
    compiling: bool,
    as_json: bool,
) -> None:
    """Rebase the series onto a newer pin, patch by patch.

    The stack is rebuilt on its recorded base and merged onto the new one. Work tree, branch and patch files
    stay as they are until everything is done; then patches/PIN is written in one step, and the work tree
    moves along if it was on the old series. `pyggml undo` takes all of it back.

    At a conflict it stops with exit code 3 and a report. What you decide is recorded in
    patches/PIN/resolutions and replayed the next time, on any machine.

    \b
    Examples:
      pyggml patch rebase --onto b11549
      pyggml patch rebase --continue                  after you resolved it in the private worktree
      pyggml patch rebase --skip --upstream --reason "upstream reads it from the header since 1234abc"
      pyggml patch rebase --abort
      pyggml patch rebase --record --from 0c1e57098 --onto b11549     after you adapted patches by hand
    """
    from pyggml.series.rebasing import run as runs
    from pyggml.series.worktree.sequencer import REBASING

    project = current_project()
    _check_usage(onto, go, skip, give_up, plan, record, confirm or bool(remove), bool(reason) or upstream)
    if give_up:
        pin = runs.abort(project)
        _tell(
            as_json, {"state": "aborted"}, [f"gave up the rebase onto {pin}; everything is as it was before"]
        )
        return
    if plan and onto is None:
        todo = runs.edit_todo(project, _editor)
        _tell(
            as_json,
            {"todo": [asdict(item) for item in todo]},
            [f"the plan is changed; go on with: {REBASING.resume}"],
        )
        return
    if record:
        from pyggml.series.rebasing.record import record_decisions

        written = record_decisions(project, onto, source)
        _tell(as_json, {"written": list(written)}, [f"wrote {path}" for path in written] or ["nothing new"])
        return
    hooks = _hooks(project, onto, compiling, as_json)

    def act() -> RebaseResult:
        if go:
            return runs.go_on(project, hooks, confirm=confirm, remove=remove, replace_series=replace)
        if skip:
            return runs.skip(project, reason or "", upstream=upstream, hooks=hooks)
        assert onto is not None  # noqa: S101
        edit = _editor if plan else None
        return runs.begin(project, onto, source, hooks, replace_series=replace, edit=edit)

    _finish(project, act, as_json)


def _check_usage(
    onto: str | None,
    go: bool,
    skip: bool,
    give_up: bool,
    plan: bool,
    record: bool,
    continue_options: bool,
    skip_options: bool,
) -> None:
    chosen = [name for name, on in {"--continue": go, "--skip": skip, "--abort": give_up}.items() if on]
    if len(chosen) > 1 or (chosen and onto) or (chosen and (plan or record)):
        raise UsageError(
            "--onto, --continue, --skip and --abort exclude each other",
            "--edit-todo and --record go with --onto.",
        )
    if not chosen and onto is None and not plan:
        raise UsageError(
            "rebase onto what?",
            "Name a pin: pyggml patch rebase --onto PIN   (the pins: pyggml vendor status)",
        )
    if continue_options and not go:
        raise UsageError("--confirm and --remove go with --continue", "See: pyggml patch rebase --help")
    if skip_options and not skip:
        raise UsageError("--reason and --upstream go with --skip", "See: pyggml patch rebase --help")


def _tell(as_json: bool, document: Any, lines: list[str]) -> None:
    if as_json:
        print_json(document)
    else:
        for line in lines:
            click.echo(line)


def _editor(text: str) -> str:
    try:
        changed = click.edit(text, require_save=False, extension=".txt")
    except UnicodeDecodeError as error:
        raise PyggmlError(
            f"the edited plan is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}",
            "Set the editor to UTF-8 and run the command again. Nothing was changed.",
        ) from error
    return text if changed is None else changed


def _hooks(project: Project, onto: str | None, compiling: bool, as_json: bool) -> RebaseHooks:
    from pyggml.series.rebasing.run import RebaseHooks
    from pyggml.series.rebasing.state import load_rebase
    from pyggml.series.rebasing.text import step_lines

    def report(step: RebasedPatch) -> None:
        for line in step_lines(step):
            click.echo(line, err=as_json)

    state = load_rebase(project)
    if not (compiling or (state is not None and state.compiling)):
        return RebaseHooks(report)
    from pyggml.prove.compile import compile_check

    name = onto or (state.onto if state is not None else "")
    return RebaseHooks(report, compile_check(project, name, say))


def _finish(project: Project, act: Callable[[], RebaseResult], as_json: bool) -> None:
    from pyggml.series.rebasing.run import RebaseStoppedError
    from pyggml.series.rebasing.stop_report import report_text
    from pyggml.series.rebasing.text import result_document, result_lines, step_document

    try:
        result = act()
    except RebaseStoppedError as stopped:
        report = stopped.report
        steps = [step_document(step) for step in stopped.steps]
        if as_json:
            print_json({"state": "stopped", "patches": steps, "dossier": asdict(report)})
        else:
            click.echo(f"\n{report_text(report, brief=True)}")
        raise
    difference = _abi_difference(project, result)
    if as_json:
        print_json({**result_document(result), "abi": difference})
        return
    for line in result_lines(result):
        click.echo(line)
    if difference is not None:
        click.echo(
            f"the C interface differs in {len(difference)} places; list them with: pyggml abi diff A B"
        )


def _abi_difference(project: Project, result: RebaseResult) -> list[dict[str, Any]] | None:
    """How the C interface of the two pins differs; None unless both are built."""
    from pyggml.builder.record import find_build
    from pyggml.native.abi import diff_abi, read_abi

    if not result.steps:
        return None
    try:
        a, b = (read_abi(find_build(project, pin=pin).directory) for pin in (result.source, result.onto))
    except PyggmlError:
        return None
    return [asdict(change) for change in diff_abi(a, b)]


@click.command("range-diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page."
)
@json_option
def range_diff(before: str, after: str, html: Path | None, as_json: bool) -> None:
    """Compare two series patch by patch; A and B are pins or directories of patches.

    `=` marks the same change, `!` a changed one, `<` one that only A has, and `>` one that only B has.

    \b
    Examples:
      pyggml patch range-diff 0c1e57098 b11549
      pyggml patch range-diff 0c1e57098 b11549 --html rebase.html
      pyggml patch range-diff 4df29be4f ../exported-patches
    """
    from pyggml.series.exchange.range_diff import compare, entry_lines

    comparison = compare(current_project(), before, after)
    if html is not None:
        from pyggml.files import write_output
        from pyggml.pages.range_diff import range_diff_page

        write_output(html, range_diff_page(comparison))
    if as_json:
        print_json(asdict(comparison))
    elif html is not None:
        click.echo(f"wrote {html}")
    else:
        for entry in comparison.entries:
            for line, style in entry_lines(entry):
                click.echo(click.style(line, **style))
