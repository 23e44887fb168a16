"""Making one patch of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.publish import Goal, SeriesChange, begin, pick_and_publish
from pyggml.series.patchfile.mail import clean_message
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.picks import Pick, series_picks
from pyggml.series.stack.series_file import Patch, check_new_name
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.position import refuse_outdated
from pyggml.series.worktree.session import Needs, changing


def squash_patches(
    project: Project,
    wanted: Sequence[str],
    message: str | None = None,
    name: str | None = None,
    pin: str | None = None,
) -> SeriesChange:
    """Make one patch of several, at the place of the lowest; the source stays the same.

    Its author is that of the lowest patch. `series.toml` gets the purposes, conditions and proofs of all.

    Args:
        message: by default the messages of all, bottom up.
        name: by default that of the lowest patch.

    Raises:
        PyggmlError: fewer than two patches, local edits, or the patches give another source in the new order.
        StoppedError: a patch conflicts at its new place.
    """
    doing = f"patch squash {' '.join(wanted)}"
    with changing(project, doing, pin, Needs.SETTLED | Needs.OWN_PIN) as session:
        work = session.work
        refuse_outdated(work)
        numbers = sorted({work.series.find(one) for one in wanted})
        if len(numbers) < 2:
            raise PyggmlError("a squash needs at least two patches", "List them with: pyggml patch list")
        lowest, total, stack = numbers[0], len(work.series.patches), work.stack()
        parts = series_picks(work.series, stack, numbers)
        entry, notes = merged_entry([part.patch for part in parts], name)
        if name is not None and name not in [part.patch.name for part in parts]:
            check_new_name(name, work.series)
        text = clean_message(message) if message else joined_message([stack[n - 1] for n in numbers])
        squashed = Pick(
            entry,
            *(parts[0].author, text, tuple(delta for part in parts for delta in part.deltas)),
        )
        later = [number for number in range(lowest + 1, total + 1) if number not in numbers]
        picks = [squashed, *series_picks(work.series, stack, later)]
        done = list(zip(work.series.patches[: lowest - 1], stack[: lowest - 1], strict=True))
        applied = session.applied - sum(number <= session.applied for number in numbers[1:])
        tree = work_tree_state(work.git)
        operation = begin(
            work, f"patch squash {' '.join(part.patch.name for part in parts)}", "edit", applied, tree
        )
        otherwise = (
            "side by side, these patches give another source than in their places",
            "Bring them together first, and look at each step: pyggml patch move NAME N",
        )
        goal = Goal(total - len(numbers) + 1, work.series.trees[-1], otherwise)
        change = pick_and_publish(work, operation, done, picks, tree, goal)
        return replace(change, notes=notes)


def joined_message(commits: Sequence[Commit]) -> str:
    """The messages of several commits as one, and their other authors as co-authors."""
    text = "\n\n".join(commit.message.strip() for commit in commits)
    first = commits[0].author
    people = dict.fromkeys((c.author.name, c.author.email) for c in commits)
    others = [f"Co-authored-by: {n} <{e}>" for n, e in people if (n, e) != (first.name, first.email)]
    return clean_message("\n\n".join([text, "\n".join(others)]) if others else text)


def merged_entry(patches: Sequence[Patch], name: str | None = None) -> tuple[Patch, tuple[str, ...]]:
    """The entry of the patch that several become, and what to say about its proofs.

    Args:
        name: by default that of the first.
    """

    def all_of(values: Sequence[str], between: str) -> str:
        return between.join(dict.fromkeys(value for value in values if value))

    first = replace(patches[0], name=name or patches[0].name)
    proven = [patch for patch in patches if patch.proof]
    reasons = list(dict.fromkeys(patch.fails_with for patch in proven))
    # Every proof must fail in the way that is recorded: without a way for one of them, there is none for all.
    fails_with = (
        "" if "" in reasons else "|".join(reasons if len(reasons) < 2 else [f"(?:{r})" for r in reasons])
    )
    notes = []
    if proven:
        whose = " and ".join(patch.name for patch in proven)
        notes.append(
            f"{first.name} has the proofs of {whose} now; run them with: pyggml patch prove {first.name}"
        )
    if "" in reasons and any(reasons):
        lost = " and ".join(repr(reason) for reason in reasons if reason)
        notes.append(f"fails-with is left out, since not all of these proofs have one (it was {lost})")
    entry = replace(
        first,
        purpose=all_of([patch.purpose for patch in patches], " "),
        drop_when=all_of([patch.drop_when for patch in patches], "; and "),
        proof=tuple(dict.fromkeys(node for patch in patches for node in patch.proof)),
        fails_with=fails_with,
    )
    return entry, tuple(notes)
