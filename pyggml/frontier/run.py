"""`pyggml patch frontier`: the ends of the ladder first, then by halves, the cheapest question first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyggml.errors import PyggmlError
from pyggml.frontier.answers import Answers
from pyggml.frontier.collision import Collision, ContainedHunk, contained_in, explain
from pyggml.frontier.placing import APPLIES, GONE, Change, Placed, Placer, make_changes
from pyggml.project import Project
from pyggml.prove.search import Bracket, bisect
from pyggml.series.worktree.workspace import Workspace
from pyggml.upstream.ladder import Ladder
from pyggml.upstream.tree_store import LadderTree, TreeStore, UnusableTreeError

Say = Callable[[str], None]
TEXT = "text"


@dataclass(frozen=True)
class Answer:
    """The answer to a question about one patch on one rung.

    Attributes:
        good: None if the question cannot be answered there.
        detail: the first error, or why there is no answer.
    """

    good: bool | None
    detail: str = ""


class Question(Protocol):
    """A question about a patch that merges as text."""

    name: str
    """`compile` or `proof`."""

    def ask(self, rung: LadderTree, change: Change, placed: Sequence[Placed]) -> Answer:
        """Whether the patch is good on `rung`, where the series gives `placed`."""
        ...


@dataclass(frozen=True)
class Break:
    """Where a patch stops being good.

    Attributes:
        question: `text`, `compile` or `proof`.
        last_good: a rung, or the series' own pin.
        first_bad: a rung; nothing usable lies between the two.
        collision: for `text`, what upstream changed.
        detail: for the others, the first error.
    """

    question: str
    last_good: str
    first_bad: str
    collision: Collision | None = None
    detail: str = ""


@dataclass(frozen=True)
class PatchFrontier:
    """The frontier of one patch.

    Attributes:
        breaks: at most one for each question; the first one is the earliest.
        state: at the newest rung: `applies`, `changes nothing`, `collides`, `depends`, `compile` or `proof`.
        without: numbers of the patches before it that do not apply there, and in whose files it changes something:
            it is judged without them.
        contained: hunks that the newest rung has already.
        notes: what else was seen, e.g. that it applies again later.
    """

    number: int
    name: str
    state: str
    breaks: tuple[Break, ...] = ()
    without: tuple[int, ...] = ()
    contained: tuple[ContainedHunk, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def broken(self) -> bool:
        """Whether somebody has to do something about it on the newest rung."""
        return self.state not in (APPLIES, GONE)


@dataclass(frozen=True)
class FrontierReport:
    """The frontier of a series.

    Attributes:
        first, newest: the ends of the ladder that were judged.
        rungs: how many the ladder has.
        probed: names of the rungs that were looked at, oldest first.
        notes: rungs that were left out, and why.
    """

    pin: str
    ladder: str
    first: str
    newest: str
    rungs: int
    probed: tuple[str, ...]
    patches: tuple[PatchFrontier, ...]
    notes: tuple[str, ...] = ()

    @property
    def broken(self) -> bool:
        return any(patch.broken for patch in self.patches)


@contextlib.contextmanager
def frontier_lock(project: Project) -> Iterator[None]:
    """Lock the trees and answers of a project; the project itself stays usable.

    Raises:
        PyggmlError: another process works there.
    """
    busy = "another `pyggml patch frontier` or `pyggml clean` is at work in this project"
    with project.lock_part("frontier", busy):
        yield


def find_frontier(
    work: Workspace, ladder: Ladder, store: TreeStore, questions: Sequence[Question], say: Say
) -> FrontierReport:
    """Find, for each patch, the rung at which it stops being good, assuming that this happens once.

    Args:
        questions: beyond the text, in the order in which they are asked.

    Raises:
        PyggmlError: the series is empty, no rung has a usable tree, or a tree cannot be obtained now.
    """
    if not work.series.patches:
        raise PyggmlError(f"the series on pin {work.pin.name} is empty: there is no frontier to find")
    work.stack()
    return _Search(work, ladder, store, say).report(questions)


_PIN = -1
"""Stands for the series' own pin in place of a rung: there every patch is good."""


class _Search:
    def __init__(self, work: Workspace, ladder: Ladder, store: TreeStore, say: Say) -> None:
        self.work, self.ladder, self.store, self.say = work, ladder, store, say
        patches = [(patch.name, patch.tree) for patch in work.series.patches]
        self.changes = make_changes(store.git, work.series.base, patches)
        self.placer = Placer(store.git, self.changes, Answers(work.project))
        self.trees: dict[int, LadderTree | None] = {}
        self.placed: dict[int, tuple[Placed, ...]] = {}
        self.start = 0
        self.notes = list(ladder.notes)

    def report(self, questions: Sequence[Question]) -> FrontierReport:
        indexes = range(len(self.ladder.rungs))
        last = self.first_usable(reversed(indexes))
        self.start = first = self.first_usable(indexes)
        if any(one.state != APPLIES for one in self.placed[first]):
            # It may be that the ladder begins with trees that are older than the pin.
            self.start = self.nearest(first, last)
            self.place(self.start)
        if self.start > first:
            self.notes.append(
                f"older than pin {self.work.pin.name}, not judged: rungs before {self.name(self.start)}"
            )
        patches = tuple(self.frontier(change, last, questions) for change in self.changes)
        return FrontierReport(
            self.work.pin.name,
            self.ladder.description,
            self.name(self.start),
            self.name(last),
            len(indexes),
            tuple(self.name(index) for index in sorted(self.placed)),
            patches,
            tuple(self.notes),
        )

    def name(self, index: int) -> str:
        return f"pin {self.work.pin.name}" if index == _PIN else self.ladder.rungs[index].name

    def tree(self, index: int) -> LadderTree | None:
        """The tree of a rung; None if it has none that can be used."""
        if index not in self.trees:
            rung = self.ladder.rungs[index]
            try:
                self.trees[index] = self.store.fetch(rung)
            except UnusableTreeError as error:
                self.trees[index] = None
                self.notes.append(f"left out, no usable tree: {rung.name}: {error.message}")
                self.say(f"{rung.name}: left out: {error.message}")
        return self.trees[index]

    def place(self, index: int) -> tuple[Placed, ...] | None:
        """The series on a rung."""
        if index not in self.placed:
            tree = self.tree(index)
            if tree is None:
                return None
            self.placed[index] = placed = self.placer.place(tree.tree)
            bad = [f"{number:04d}" for number, one in enumerate(placed, 1) if one.state != APPLIES]
            told = f"not {', '.join(bad)}" if bad else "all"
            self.say(f"{self.name(index)}: {len(placed) - len(bad)} of {len(placed)} patches apply ({told})")
        return self.placed[index]

    def first_usable(self, indexes: Iterator[int] | range) -> int:
        for index in indexes:
            if self.place(index) is not None:
                return index
        raise PyggmlError(
            f"no rung of the ladder has a usable tree ({self.ladder.description}): {self.notes[-1]}",
            "Check --ladder, and name the upstream's folder with --subdir.",
        )

    def applies(self, change: Change, index: int) -> bool | None:
        placed = self.place(index)
        return None if placed is None else placed[change.number - 1].state == APPLIES

    def frontier(self, change: Change, last: int, questions: Sequence[Question]) -> PatchFrontier:
        newest = self.placed[last][change.number - 1]
        breaks: list[Break] = []
        good, end = self.good_start(change, last), last
        if newest.state != APPLIES:
            if good == _PIN:
                bracket = Bracket(_PIN, self.start)
            else:
                bracket = bisect(good, last, lambda index: self.applies(change, index))
            collision = self.explain(change, bracket)
            breaks.append(Break(TEXT, self.name(bracket.last_good), self.name(bracket.first_bad), collision))
            end = bracket.last_good
        state = newest.state
        for question in questions:
            if end == _PIN or (asked := self.ask(question, change, good, end)) is None:
                continue
            bracket, detail = asked
            breaks.insert(
                0,
                Break(
                    question.name, self.name(bracket.last_good), self.name(bracket.first_bad), None, detail
                ),
            )
            end = bracket.last_good
            state = question.name if state == APPLIES else state
        contained: tuple[ContainedHunk, ...] = ()
        if newest.state == APPLIES:
            contained = contained_in(
                self.store.git, change, newest.before, self.work.pin.tree, self.rung_tree(last)
            )
        notes = tuple(self.healed(change, breaks, last))
        return PatchFrontier(
            change.number, change.name, state, tuple(breaks), newest.without, contained, notes
        )

    def good_start(self, change: Change, last: int) -> int:
        """A rung at which `change` applies, to begin the search with; the pin if there is none at the beginning."""
        # The rung that is nearest to the pin may be a little older than the pin: the one after it counts too.
        for index in (self.start, min(self.start + 1, last)):
            if self.applies(change, index):
                return index
        return _PIN

    def nearest(self, first: int, last: int) -> int:
        """The rung whose tree differs from the pin's in the fewest files, assuming that the distance has one dip."""
        usable = [index for index in range(first, last + 1) if self.trees.get(index, True) is not None]
        low, high = 0, len(usable) - 1
        while low < high:
            middle = (low + high) // 2
            here, after = self.distance(usable[middle]), self.distance(usable[middle + 1])
            if here is None or after is None:
                del usable[middle if here is None else middle + 1]
                high = min(high, len(usable)) - 1 if high >= len(usable) else high - 1
            elif here <= after:
                high = middle
            else:
                low = middle + 1
        return usable[low]

    def distance(self, index: int) -> int | None:
        tree = self.tree(index)
        if tree is None:
            return None
        out = self.store.git.run("diff-tree", "-r", "-z", "--name-only", self.work.pin.tree, tree.tree)
        return out.count(b"\0")

    def rung_tree(self, index: int) -> str:
        """The tree of the pin or of a rung that was placed before."""
        tree = None if index == _PIN else self.trees[index]
        return self.work.pin.tree if tree is None else tree.tree

    def explain(self, change: Change, bracket: Bracket) -> Collision:
        placed = self.placed[bracket.first_bad]
        rungs = self.rung_tree(bracket.last_good), self.rung_tree(bracket.first_bad)
        left_out = {number for number, one in enumerate(placed, 1) if one.state != APPLIES}
        good, bad = (self.placer.stack_without(tree, left_out, change.number - 1) for tree in rungs)
        at = placed[change.number - 1]
        return explain(self.store.git, change, at, self.work.pin.tree, rungs, (good, bad))

    def ask(self, question: Question, change: Change, good: int, end: int) -> tuple[Bracket, str] | None:
        """Where the answer to `question` changes up to the rung `end`; None if it is good there, or unknown."""
        details: dict[int, str] = {}

        def ask(index: int) -> bool | None:
            placed, tree = self.place(index), self.tree(index)
            if placed is None or tree is None or placed[change.number - 1].state != APPLIES:
                return None
            answer = question.ask(tree, change, placed)
            details[index] = answer.detail
            told = {True: "good", False: "bad", None: "no answer"}[answer.good]
            self.say(
                f"{self.name(index)}: {question.name} of {change.number:04d}: {told}"
                + (f": {answer.detail.splitlines()[0]}" if answer.detail else "")
            )
            return answer.good

        if ask(end) is not False:
            return None
        if good in (_PIN, end) or ask(good) is False:
            bracket = Bracket(_PIN, end if good == _PIN else good)
        else:
            bracket = bisect(good, end, ask)
        return bracket, details[bracket.first_bad]

    def healed(self, change: Change, breaks: Sequence[Break], last: int) -> Iterator[str]:
        """Probes that contradict the assumption that a patch breaks once."""
        at = change.number - 1
        names = [rung.name for rung in self.ladder.rungs]
        text = next((one for one in breaks if one.question == TEXT), None)
        first_bad = names.index(text.first_bad) if text else last
        for index in sorted(self.placed):
            state = self.placed[index][at].state
            if (
                self.start <= index < first_bad
                and state != APPLIES
                and self.placed[last][at].state == APPLIES
            ):
                yield f"{state} at {names[index]}, but applies again at {names[last]}"
            elif index > first_bad and state == APPLIES:
                yield f"applies again at {names[index]}, after the break at {names[first_bad]}"
