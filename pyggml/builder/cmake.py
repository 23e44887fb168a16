"""Configure with CMake, build with Ninja, and keep the record truthful at every moment."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from pyggml.builder.launcher import write_launcher
from pyggml.builder.plan import PARSERS_TOGETHER, BuildPlan
from pyggml.builder.progress import DISK_FULL, NINJA_STATUS, NinjaOutput, Report
from pyggml.builder.record import Build, BuildRecord, read_record, write_record
from pyggml.builder.source import Source
from pyggml.builder.tool_environment import tool_environment
from pyggml.builder.toolchain import Toolchain
from pyggml.errors import PyggmlError, UsageError
from pyggml.files import remove_file, write_atomic
from pyggml.processes import run, run_lines

LOCK_PATIENCE_SECONDS = 120.0
_LOCK = "build.lock"
_HOOK = "pyggml-hook.cmake"
_WORTH_SAYING = 10
_PARSERS = "pyggml-parsers.cpp"
_TARGET = re.compile(rb"^build ([^\s:$|]+): phony ", re.MULTILINE)


@dataclass(frozen=True)
class BuildResult:
    """What one run did.

    Attributes:
        steps: compiled or linked; 0 when everything was up to date.
        seconds: configuring included.
        configured: CMake had to run.
        left_out: default targets that this tree does not have.
    """

    build: Build
    steps: int
    seconds: float
    configured: bool
    left_out: tuple[str, ...]


def build_tree(
    plan: BuildPlan,
    tools: Toolchain,
    source: Source,
    *,
    clean: bool = False,
    prepare: Callable[[Path], object] = lambda directory: None,
    report: Report | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> BuildResult:
    """Bring the build of `plan` up to date. The caller sees to it that the tree does not change meanwhile.

    Args:
        clean: start from nothing.
        prepare: called with the build's directory once nobody else works there, before anything else.
        report: called after each step.
        say: told in a line what takes long.

    Raises:
        PyggmlError: configuring or building failed, with the first error; the record says `failed`.
        UsageError: a target that the tree does not have.
        UserInterruptError: stopped; the record still says `building`, and the next run goes on.
    """
    started = time.monotonic()
    directory = plan.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _only_one(directory, say) as lock:
            if clean:
                _wipe(directory)
            prepare(directory)
            with (directory / "build.log").open("w", encoding="utf-8", errors="replace") as log:
                run = _Run(plan, tools, source, log, lock.fileno(), started)
                return run.all(report, say)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(plan) from error
        raise PyggmlError(f"cannot build in {directory}: {error.strerror or error}") from error


@dataclass
class _Run:
    plan: BuildPlan
    tools: Toolchain
    source: Source
    log: IO[str]
    lock: int
    started: float

    def all(self, report: Report | None, say: Callable[[str], None]) -> BuildResult:
        directory = self.plan.directory
        before = read_record(directory)
        fingerprint = self.plan.fingerprint(self.tools)
        # Another version of pyggml may have another hook.
        stale = (
            before is None
            or before.fingerprint != fingerprint
            or not (directory / "build.ninja").is_file()
            or not _is_current(directory / _HOOK)
        )
        self.say_what_changed(before, fingerprint, say)
        write_launcher(directory, self.plan.source, self.tools.launcher)
        if stale:
            say(f"configuring {self.plan.variant} with CMake {self.tools.cmake_version}")
            self.configure()
        else:
            # A patch may have changed CMake files; which targets there are shows only afterwards.
            self.refresh()
        targets, left_out = self.targets()
        record = self.record(fingerprint, targets, before)
        write_record(directory, replace(record, state="configured"))
        write_record(directory, record)
        if (planned := self.planned(targets)) >= _WORTH_SAYING:
            cache = f" with {self.tools.launcher.name}" if self.tools.launcher else ", no compiler cache"
            say(f"{planned} steps to compile and link{cache}")
        output = NinjaOutput(report)
        status = self.ninja(targets, output)
        if status != 0 and _PARSERS in output.failed_target:
            say("the chat parsers do not compile as one file: compiling them one by one")
            self.configure(f"-D{PARSERS_TOGETHER}=OFF")
            output = NinjaOutput(report)
            status = self.ninja(targets, output)
        seconds = time.monotonic() - self.started
        record = replace(record, steps=output.steps, seconds=round(seconds, 2))
        if status != 0:
            # A full disk must not hide the reason behind a failed write of the record.
            with contextlib.suppress(PyggmlError):
                write_record(directory, replace(record, state="failed"))
            raise self.failure(output)
        record = replace(record, state="done")
        if output.steps:
            record = replace(record, built_steps=output.steps, built_seconds=record.seconds)
        elif before is not None and _same_source(before, self.source):
            record = replace(record, check=before.check)
        write_record(directory, record)
        return BuildResult(Build(directory, record), output.steps, seconds, stale, left_out)

    def say_what_changed(
        self, before: BuildRecord | None, fingerprint: str, say: Callable[[str], None]
    ) -> None:
        """Why more is compiled than the source explains, and a compiler cache that came or went."""
        if before is None:
            return
        cache, cache_before = str(self.tools.launcher or ""), before.tools.get("launcher", "")
        if cache and cache != cache_before:
            say(f"compiler cache: {cache}, used from now on")
        elif cache_before and not cache:
            say(f"compiler cache: {cache_before} is gone, compiling without one")
        if before.fingerprint != fingerprint:
            options = dict(self.plan.options)
            names = [
                name
                for name in {**before.options, **options}
                if before.options.get(name) != options.get(name)
            ]
            changed = ", ".join(names) or "the compilers or CMake"
            say(
                f"{self.plan.variant} was configured differently ({changed}): much of it may be compiled again"
            )

    def configure(self, *more: str) -> None:
        directory = self.plan.directory
        # What an interrupted or differently configured run left must not pass for this one's.
        for name in ("build.ninja", "CMakeCache.txt"):
            remove_file(directory / name)
        for identified in (directory / "CMakeFiles").glob("[0-9]*"):
            shutil.rmtree(identified, ignore_errors=True)
        hook = directory / _HOOK
        if not _is_current(hook):
            write_atomic(hook, _hook_content())
        command = [str(self.tools.cmake), *self.plan.cmake_arguments(hook), *more, "--no-warn-unused-cli"]
        error = NinjaOutput()
        status = self.run(command, error.feed)
        if status != 0:
            if error.disk_full:
                raise _disk_full(self.plan)
            told = "\n".join(error.first_error()) or f"cmake ended with status {status}"
            raise PyggmlError(f"configuring {self.plan.variant} failed:\n{told}", self.see_log())

    def refresh(self) -> None:
        output = NinjaOutput()
        if self.ninja(("build.ninja",), output) != 0:
            if output.disk_full:
                raise _disk_full(self.plan)
            told = "\n".join(output.first_error()) or "ninja failed without saying why"
            raise PyggmlError(f"configuring {self.plan.variant} failed:\n{told}", self.see_log())

    def targets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        known = {
            name.decode("utf-8", "replace")
            for name in _TARGET.findall((self.plan.directory / "build.ninja").read_bytes())
        }
        missing = tuple(name for name in self.plan.targets if name not in known)
        if not missing:
            return self.plan.targets, ()
        if not self.plan.optional_targets:
            import difflib

            near = difflib.get_close_matches(missing[0], known, 5, 0.5)
            raise UsageError(
                f"this tree has no target {missing[0]}",
                f"Near it: {', '.join(near)}."
                if near
                else "Targets are named as in its CMakeLists.txt files.",
            )
        present = tuple(name for name in self.plan.targets if name in known)
        if not present:
            raise PyggmlError(
                f"{self.plan.source} has none of the default targets ({', '.join(missing)})",
                "Name what to build: pyggml build --target NAME",
            )
        return present, missing

    def planned(self, targets: tuple[str, ...]) -> int:
        """How many steps Ninja will take; fewer, where one shows that those after it are not needed."""
        command = [str(self.tools.ninja), "-C", str(self.plan.directory), "-n", *targets]
        finished = run(command, env=tool_environment({"NINJA_STATUS": NINJA_STATUS}), merged=True)
        output = NinjaOutput()
        for line in finished.text.splitlines():
            output.feed(line)
        return output.steps

    def ninja(self, targets: tuple[str, ...], output: NinjaOutput) -> int:
        command = [str(self.tools.ninja), "-C", str(self.plan.directory), "-j", str(self.plan.jobs), *targets]
        return self.run(command, output.feed)

    def run(self, command: list[str], on_line: Callable[[str], None]) -> int:
        def feed(line: str) -> None:
            self.log.write(line)
            on_line(line)

        self.log.write(f"$ {' '.join(command)}\n")
        self.log.flush()
        environment = tool_environment({"NINJA_STATUS": NINJA_STATUS})
        try:
            return run_lines(command, feed, environment, keep_open=(self.lock,))
        finally:
            self.log.flush()

    def record(self, fingerprint: str, targets: tuple[str, ...], before: BuildRecord | None) -> BuildRecord:
        tools = self.tools
        versions = {
            "cc": str(tools.cc),
            "cc_version": tools.cc_version,
            "cxx": str(tools.cxx),
            "cxx_version": tools.cxx_version,
            "cmake": str(tools.cmake),
            "cmake_version": tools.cmake_version,
            "ninja": str(tools.ninja),
            "ninja_version": tools.ninja_version,
            "launcher": str(tools.launcher or ""),
            "command": self.plan.command,
            **dict(self.plan.cuda),
        }
        return BuildRecord(
            variant=self.plan.variant,
            pin=self.plan.pin,
            state="building",
            head=self.source.head,
            tree=self.source.tree,
            dirty=self.source.dirty,
            fingerprint=fingerprint,
            arch=self.plan.arch,
            features=self.plan.features,
            options=dict(self.plan.options),
            targets=targets,
            tools=versions,
            built_steps=before.built_steps if before else 0,
            built_seconds=before.built_seconds if before else 0.0,
        )

    def failure(self, output: NinjaOutput) -> PyggmlError:
        if output.disk_full:
            return _disk_full(self.plan)
        if output.out_of_memory:
            fewer = max(1, self.plan.jobs // 2)
            return PyggmlError(
                f"the compiler was killed for lack of memory ({self.plan.jobs} jobs at a time)",
                f"Run it with fewer jobs: {self.plan.command} --jobs {fewer}. {self.see_log()}",
            )
        told = "\n".join(output.first_error()) or "ninja failed without saying why"
        return PyggmlError(f"building {self.plan.variant} failed:\n{told}", self.see_log())

    def see_log(self) -> str:
        return f"All of it: {self.plan.directory / 'build.log'}"


def _hook_content() -> bytes:
    return (Path(__file__).parent / "hook.cmake").read_bytes()


def _is_current(hook: Path) -> bool:
    return hook.is_file() and hook.read_bytes() == _hook_content()


def _same_source(before: BuildRecord, source: Source) -> bool:
    return before.state == "done" and before.tree == source.tree and not before.dirty and not source.dirty


def _disk_full(plan: BuildPlan) -> PyggmlError:
    size = f"{3 if plan.cuda else 1} GB"
    return PyggmlError(
        f"{DISK_FULL[0].lower()}{DISK_FULL[1:]} while building in {plan.directory}",
        f"Make room (a full build needs about {size} there, and some in {tempfile.gettempdir()}) and run the same "
        "command again; it continues.",
    )


def _wipe(directory: Path) -> None:
    for entry in sorted(directory.iterdir(), key=lambda path: path.name != "pyggml-build.json"):
        if entry.name == _LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextlib.contextmanager
def _only_one(directory: Path, say: Callable[[str], None]) -> Iterator[IO[bytes]]:
    """Hold the build directory; Ninja and the compilers inherit the hold.

    The project's lock goes with the process that took it, so after a `kill -9` compilers may still be
    writing here; they are waited for.
    """
    with (directory / _LOCK).open("ab") as lock:
        deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PyggmlError(
                        f"processes of an earlier build are still at work in {directory}",
                        "Wait for them or stop them, and run the command again.",
                    ) from None
            if not told:
                say("waiting for compilers that an interrupted build left behind")
                told = True
            time.sleep(0.1)
        yield lock
