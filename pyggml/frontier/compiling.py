"""Do the source files that a patch touches compile on a rung? Python files are parsed, C and C++ files checked."""

from __future__ import annotations

import json
import shlex
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from pyggml import processes
from pyggml.builder.plan import BuildOptions, make_plan
from pyggml.builder.tool_environment import tool_environment
from pyggml.errors import PyggmlError
from pyggml.frontier.answers import Answers
from pyggml.frontier.placing import Change, Placed
from pyggml.frontier.run import Answer
from pyggml.prove.bench import TreeBench, first_line
from pyggml.series.stack.trees import tree_reader
from pyggml.upstream.tree_store import LadderTree

_C_SUFFIXES = (".c", ".cc", ".cpp", ".cxx")


class CompileQuestion:
    """The question `compile`.

    A C or C++ file is checked with the compiler's own command for it, without generating code; so the tree is
    only configured, never built. A header counts through the touched files that include it.
    """

    name = "compile"

    def __init__(self, bench: TreeBench, answers: Answers, say: Callable[[str], None]) -> None:
        self.bench = bench
        self.git = bench.work.git
        self.answers = answers
        self.say = say
        self._tree = ""
        self._commands: dict[Path, list[str]] = {}

    def ask(self, rung: LadderTree, change: Change, placed: Sequence[Placed]) -> Answer:
        """Whether all touched files compile with the series up to `change`; see `Question.ask`."""
        here = placed[change.number - 1]
        kept = self.answers.get(self.name, change.chain, here.after)
        if kept is not None:
            return Answer(kept.get("good"), str(kept.get("detail", "")))
        answer = self._check(rung, change, here)
        self.answers.put(asdict(answer), self.name, change.chain, here.after)
        return answer

    def _check(self, rung: LadderTree, change: Change, here: Placed) -> Answer:
        read = tree_reader(self.git, here.after)
        files = [path for path in sorted(change.paths) if read(path) is not None]
        failure = next(filter(None, (_parse(path, read(path) or b"") for path in files)), "")
        sources = [path for path in files if PurePosixPath(path).suffix in _C_SUFFIXES]
        if failure or not sources:
            return Answer(not failure, failure)
        if failure := self._compile(rung.commit, here.after, sources):
            # Upstream's own trees need not compile.
            if self._compile(rung.commit, here.before, sources):
                return Answer(None, f"it does not compile without the patch either: {failure}")
            return Answer(False, failure)
        return Answer(True)

    def _compile(self, head: str, tree: str, paths: Sequence[str]) -> str:
        """The first error in `paths` of `tree`; empty if there is none."""
        try:
            self._configure(head, tree)
        except processes.UserInterruptError:
            raise
        except PyggmlError as error:
            return error.message
        for path in paths:
            command = self._commands.get((self.bench.place / path).resolve())
            if command is None:
                continue
            done = processes.run(command, env=tool_environment(), cwd=self._directory, merged=True)
            if done.status != 0:
                lines = done.text.replace(f"{self.bench.place}/", "").splitlines()
                return next((line for line in lines if "error:" in line), first_line(done.text))
        return ""

    @property
    def _directory(self) -> Path:
        return self.bench.home.state_dir / "compile"

    def _configure(self, head: str, tree: str) -> None:
        """Bring the private tree to `tree`, and read how its files are compiled."""
        from pyggml.builder.machine import read_machine
        from pyggml.builder.toolchain import find_toolchain

        if tree == self._tree:
            return
        self._tree = ""
        self.bench.move(head, tree)
        machine = read_machine()
        tools = find_toolchain(machine.arch, self.say)
        plan = make_plan(
            self.bench.place, self.bench.home.build_dir, "frontier", BuildOptions(), machine, tools
        )
        directory = self._directory
        shutil.rmtree(directory / "CMakeFiles", ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        options = [f"-D{name}={value}" for name, value in plan.options if not name.endswith("_LAUNCHER")]
        command = [
            str(tools.cmake),
            "-S",
            str(self.bench.place),
            "-B",
            str(directory),
            "-G",
            "Ninja",
            *options,
        ]
        command += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "--fresh", "--no-warn-unused-cli"]
        done = processes.run(command, env=tool_environment(), merged=True)
        if done.status != 0:
            told = next(
                (line for line in done.text.splitlines() if "CMake Error" in line), first_line(done.text)
            )
            raise PyggmlError(f"CMake cannot configure it: {told}")
        self._commands = _read_commands(directory / "compile_commands.json")
        self._tree = tree


def _read_commands(file: Path) -> dict[Path, list[str]]:
    """How each file is checked: its command, with `-fsyntax-only` in place of the output."""
    commands: dict[Path, list[str]] = {}
    for entry in json.loads(file.read_bytes()):
        words = shlex.split(entry["command"])
        if "-o" in words:
            at = words.index("-o")
            del words[at : at + 2]
        commands[Path(entry["file"]).resolve()] = [word for word in words if word != "-c"] + ["-fsyntax-only"]
    return commands


def _parse(path: str, content: bytes) -> str:
    """The syntax error of a Python file; empty if there is none, or for another file."""
    if PurePosixPath(path).suffix != ".py":
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"{path}:{line}: {error.args[0]}" if line else f"{path}: {error}"
    return ""
