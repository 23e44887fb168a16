"""Does the proof of a patch pass on a rung, with all patches of the series that apply there?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.frontier.answers import Answers
from pyggml.frontier.placing import Change, Placed
from pyggml.frontier.run import Answer
from pyggml.processes import UserInterruptError
from pyggml.prove.bench import TreeBench
from pyggml.prove.proof import MISSING, PASSED, SKIPPED, NodeResult, run_node
from pyggml.series.stack.series_file import Series
from pyggml.upstream.tree_store import LadderTree

RunNode = Callable[[str, Mapping[str, str], Path], NodeResult]


class ProofQuestion:
    """The question `proof`.

    Args:
        root: the directory that node ids are relative to.
    """

    name = "proof"

    def __init__(
        self, bench: TreeBench, series: Series, root: Path, answers: Answers, run: RunNode = run_node
    ) -> None:
        self.bench = bench
        self.series = series
        self.root = root
        self.answers = answers
        self.run = run

    def ask(self, rung: LadderTree, change: Change, placed: Sequence[Placed]) -> Answer:
        """Whether the proof passes; see `Question.ask`."""
        nodes = self.series.patches[change.number - 1].proof
        if not nodes:
            return Answer(None, "it has no proof")
        top = placed[-1].after
        about = (
            top,
            hashlib.sha256(repr([(node, self._content(node)) for node in nodes]).encode()).hexdigest(),
        )
        kept = self.answers.get(self.name, *about)
        if kept is not None:
            return Answer(kept.get("good"), str(kept.get("detail", "")))
        answer = self._prove(rung.commit, top, nodes)
        self.answers.put(asdict(answer), self.name, *about)
        return answer

    def _prove(self, head: str, tree: str, nodes: Sequence[str]) -> Answer:
        try:
            env = self.bench.at(head, tree)
        except UserInterruptError:
            raise
        except PyggmlError as error:
            return Answer(None, f"the series does not build: {error.message}")
        for node in nodes:
            result = self.run(node, env, self.root)
            if result.outcome in (SKIPPED, MISSING):
                return Answer(None, f"{node} is {result.outcome}: {result.summary}")
            if result.outcome != PASSED:
                return Answer(False, f"{node} {result.outcome}: {result.summary}")
        return Answer(True)

    def _content(self, node: str) -> str:
        """A hash of the test's file: another test is another question."""
        try:
            return hashlib.sha256((self.root / node.partition("::")[0]).read_bytes()).hexdigest()
        except OSError:
            return ""
