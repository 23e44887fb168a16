"""Does the build work? Runs two of upstream's test programs and reads their results."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pyggml.builder.record import Build, check_instruction_set, read_record, write_record
from pyggml.errors import PyggmlError
from pyggml.processes import Finished, run

TIME_LIMIT_SECONDS = 300.0
MOST_RUNS = 4
"""Of a program that exits with 0 although its output has no end."""
SEED = 20200101
"""Fixed, so that the same binaries give the same result; by default the programs use a random seed."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ALLOC = re.compile(r"^(test_\w+(?:\([^)]*\))?) (PASSED)?", re.MULTILINE)
_ARCH_ROW = re.compile(r"^\|([^|\n]+)\|([^|\n]+)\|\s*(Dense|MoE)\|([^\n]*)$", re.MULTILINE)
_REASON = re.compile(
    r"GGML_ASSERT\(.*|.*\bencountered runtime error: .*|.*Sanitizer: .*|.*\bruntime error: .*"
)


@dataclass(frozen=True)
class Counts:
    """What a test program said it did; `broken` names the test that began and never reported its result."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    broken: str | None = None


@dataclass(frozen=True)
class ProgramResult:
    """One test program.

    Attributes:
        outcome: `passed`, `failed` (it said so), `crashed`, `timeout`, `incomplete` (it exited with 0, and each
            time part of its output was lost), `nothing` (it ran no test) or `missing` (it is not built).
        detail: the reason in a line, empty when it passed.
    """

    name: str
    outcome: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The results of all programs; `tree` is the source that the binaries were built from."""

    ok: bool
    tree: str
    programs: tuple[ProgramResult, ...]
    seconds: float
    log: str
    remembered: bool = False

    @property
    def passed(self) -> int:
        return sum(program.passed for program in self.programs)

    @property
    def failed(self) -> int:
        return sum(program.failed for program in self.programs)

    @property
    def skipped(self) -> int:
        return sum(program.skipped for program in self.programs)


def parse_test_alloc(output: str) -> Counts:
    """Count `test_name PASSED` lines.

    tests/test-alloc.cpp prints the name, runs, prints PASSED; a failure is an abort in between.
    """
    rows = _ALLOC.findall(output)
    broken = next((name for name, verdict in rows if not verdict), None)
    return Counts(
        passed=sum(1 for _, verdict in rows if verdict), failed=int(broken is not None), broken=broken
    )


def parse_test_llama_archs(output: str) -> Counts:
    """Count the rows of the table that tests/test-llama-archs.cpp prints.

    A row is `|arch|device|Dense or MoE|verdict (NMSE)|roundtrip verdict|`, each verdict one of OK, FAIL
    and SKIP in colours. The first three cells come before the test, so a row without its last two died.
    """
    passed = failed = skipped = 0
    broken = None
    for arch, device, config, rest in _ARCH_ROW.findall(_ANSI.sub("", output)):
        cells = rest.split("|")
        verdicts = [cell.split()[0] for cell in cells if cell.split()]
        if len(cells) < 3 or len(verdicts) < 2:
            broken = f"{arch.strip()} {config} on {device.strip()}"
            failed += 1
        elif "FAIL" in verdicts:
            failed += 1
        elif "OK" in verdicts:
            passed += 1
        else:
            skipped += 1
    return Counts(passed, failed, skipped, broken)


@dataclass(frozen=True)
class Program:
    """A test program, its arguments, and how to read what it prints.

    Attributes:
        last: begins the last line of its output, if its file holds that text; older upstreams' may not.
    """

    name: str
    arguments: tuple[str, ...]
    parse: Callable[[str], Counts]
    last: str = ""


PROGRAMS = (
    Program("test-alloc", (), parse_test_alloc),
    Program("test-llama-archs", ("-a", "llama", "-s", str(SEED)), parse_test_llama_archs, "Summary: "),
)


def check_build(
    build: Build,
    *,
    again: bool = False,
    programs: tuple[Program, ...] = PROGRAMS,
    limit: float = TIME_LIMIT_SECONDS,
    say: Callable[[str], None] = lambda text: None,
) -> CheckResult:
    """Run upstream's test programs from a finished build and remember the result in its record.

    Programs that this upstream does not have are left out.

    Args:
        again: run them even if the same binaries were checked before.
        limit: seconds for each program.
        say: called with a line for each program.

    Raises:
        PyggmlError: this processor cannot run the build, or it has none of the programs.
    """
    check_instruction_set(build)
    remembered = build.record.check
    if remembered is not None and not again:
        return _from_document(remembered)
    wanted = [program for program in programs if program.name in build.record.targets]
    if not wanted:
        names = " or ".join(program.name for program in programs)
        raise PyggmlError(
            f"the build {build.record.variant} has no {names} to check it with",
            "Build the default targets: pyggml build",
        )
    log = build.directory / "check.log"
    results = []
    with log.open("wb") as file:
        for program in wanted:
            say(f"running {program.name}")
            result, output = _run_until_whole(build, program, limit, say)
            file.write(output)
            results.append(result)
    check = CheckResult(
        ok=all(result.outcome == "passed" for result in results),
        tree=build.record.tree,
        programs=tuple(results),
        seconds=round(sum(result.seconds for result in results), 2),
        log=str(log),
    )
    _remember(build, check)
    return check


def _run_until_whole(
    build: Build, program: Program, limit: float, say: Callable[[str], None]
) -> tuple[ProgramResult, bytes]:
    """Run a program, again while it exits with 0 and part of its output is lost.

    Upstream's programs print through a thread that nobody waits for at their end (common/log.cpp), so on a busy
    machine the last rows may be missing. Patch log-at-exit mends that; not every tree has it.
    """
    logs = b""
    for left in reversed(range(MOST_RUNS)):
        result, log = _run(build, program, limit)
        logs += log
        if result.outcome != "incomplete":
            break
        if left:
            say(f"{program.name} exited with 0, but part of its output was lost; running it again")
    else:
        detail = f"exit status 0 in each of {MOST_RUNS} runs, but part of the output was lost{result.detail}"
        result = replace(result, detail=detail)
    return result, logs


def _run(build: Build, program: Program, limit: float) -> tuple[ProgramResult, bytes]:
    path = build.bin_dir / program.name
    command = [str(path), *program.arguments]
    if not path.is_file():
        return ProgramResult(program.name, "missing", 0, 0, 0, 0.0, f"{path} does not exist"), b""
    started = time.monotonic()
    try:
        finished = run(command, env=_environment(build.bin_dir), cwd=build.directory, limit=limit)
    except PyggmlError as error:
        log = f"$ {' '.join(command)}\n{error}\n\n".encode()
        return ProgramResult(program.name, "crashed", 0, 0, 0, 0.0, error.message), log
    seconds = round(time.monotonic() - started, 2)
    counts = program.parse(finished.text)
    lost = program.last not in finished.text and program.last.encode() in path.read_bytes()
    outcome, detail = _judge(counts, finished, lost, limit)
    # A row whose end was lost is no failure.
    failed = counts.failed - (outcome == "incomplete" and counts.broken is not None)
    result = ProgramResult(program.name, outcome, counts.passed, failed, counts.skipped, seconds, detail)
    log = f"$ {' '.join(command)}\n".encode() + finished.output + finished.errors
    return result, log + f"[{outcome} {detail}]\n\n".encode()


def _judge(counts: Counts, finished: Finished, lost: bool, limit: float) -> tuple[str, str]:
    """The outcome and, unless it passed, the reason in a line; `lost`: the output has no last line."""
    at = f" in {counts.broken}" if counts.broken else ""
    status = finished.status
    reason = _REASON.search(finished.errors.decode("utf-8", "replace") + "\n" + finished.text)
    why = f": {reason[0].strip()[:200]}" if reason else ""
    if status is None:
        return "timeout", f"not finished after {limit:g} s{at}"
    if status == 0 and (counts.broken or lost):
        return "incomplete", at
    if status < 0 or counts.broken:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return "crashed", f"{how}{at}{why}"
    if status != 0 or counts.failed:
        return "failed", f"{counts.failed} failed, exit status {status}{why}"
    if counts.passed == 0:
        return "nothing", "it ran no test"
    return "passed", ""


def _environment(bin_dir: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "GGML_BACKEND_PATH"}
    # LD_LIBRARY_PATH comes before a program's own RUNPATH; another libggml there would be tested instead.
    before = env.get("LD_LIBRARY_PATH")
    env["LD_LIBRARY_PATH"] = f"{bin_dir}:{before}" if before else str(bin_dir)
    env["GGML_NO_BACKTRACE"] = "1"
    return env


def _remember(build: Build, check: CheckResult) -> None:
    current = read_record(build.directory)
    # Only for the very build that was checked, and only if its tree id describes its source.
    if current == build.record and not current.dirty:
        write_record(build.directory, replace(current, check=asdict(check)))


def _from_document(document: Mapping[str, Any]) -> CheckResult:
    values = {name: value for name, value in document.items() if name != "programs"}
    programs = tuple(ProgramResult(**program) for program in document["programs"])
    return CheckResult(**{**values, "programs": programs, "remembered": True})
