"""Real builds of the tiny upstream."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pyggml.builder.cmake import BuildResult, build_tree
from pyggml.builder.machine import Machine
from pyggml.builder.plan import BuildOptions, BuildPlan, make_plan
from pyggml.builder.progress import Step
from pyggml.builder.record import read_record
from pyggml.builder.source import Source
from pyggml.builder.toolchain import Toolchain
from pyggml.errors import PyggmlError, UsageError
from tests.builder.conftest import ALL_STEPS


class Builder:
    """Builds the fixture tree below a directory whose name is hostile."""

    def __init__(self, source: Source, machine: Machine, tools: Toolchain, root: Path) -> None:
        self.source, self.machine, self.tools = source, machine, tools
        self.build_dir = root / "bü ild" / "a'b"
        self.said: list[str] = []
        self.reported: list[Step] = []

    def plan(self, **options: object) -> BuildPlan:
        made = BuildOptions(jobs=2, **options)  # type: ignore[arg-type]
        return make_plan(self.source.path, self.build_dir, self.source.pin, made, self.machine, self.tools)

    def run(self, *, clean: bool = False, **options: object) -> BuildResult:
        return build_tree(
            self.plan(**options),
            self.tools,
            self.source,
            clean=clean,
            report=self.reported.append,
            say=self.said.append,
        )


@pytest.fixture
def builder(source: Source, machine: Machine, tools: Toolchain, tmp_path: Path) -> Builder:
    return Builder(source, machine, tools, tmp_path)


def test_a_build_that_another_pyggml_configured_is_configured_again(builder: Builder) -> None:
    builder.run()
    hook = builder.plan().directory / "pyggml-hook.cmake"
    hook.write_bytes(hook.read_bytes() + b"# of an older version\n")
    assert builder.run().configured
    assert not builder.run().configured


def test_first_build_compiles_everything_and_the_second_nothing(builder: Builder) -> None:
    first = builder.run()
    assert (first.steps, first.configured) == (ALL_STEPS, True)
    assert builder.reported[-1].done == builder.reported[-1].total == ALL_STEPS
    # The tree has only some of the default targets; the others are left out, not an error.
    assert "llama-bench" in first.left_out
    assert first.build.record.targets == ("ggml", "test-alloc", "test-llama-archs")
    assert (first.build.bin_dir / "test-alloc").is_file()
    assert subprocess.run([first.build.bin_dir / "test-alloc"], check=False).returncode == 0
    second = builder.run()
    assert (second.steps, second.configured) == (0, False)
    record = read_record(second.build.directory)
    assert record is not None
    assert (record.state, record.steps, record.built_steps) == ("done", 0, ALL_STEPS)


def test_touching_one_file_rebuilds_only_what_needs_it(builder: Builder) -> None:
    builder.run()
    archs = builder.source.path / "archs.cpp"
    archs.write_text(archs.read_text("utf-8") + "// more\n", "utf-8")
    # Compile and link of the one program.
    assert builder.run().steps == 2


def test_git_index_does_not_configure_anew(builder: Builder) -> None:
    index = builder.source.path / ".git" / "index"
    index.parent.mkdir()
    index.write_bytes(b"1")
    builder.run()
    index.write_bytes(b"2")
    assert builder.run().steps == 0
    assert "Re-running CMake" not in builder.plan().directory.joinpath("build.log").read_text("utf-8")


def test_changed_cmake_file_configures_anew(builder: Builder) -> None:
    builder.run()
    lists = builder.source.path / "CMakeLists.txt"
    lists.write_text(lists.read_text("utf-8") + "add_executable(extra archs.cpp)\n", "utf-8")
    assert builder.run(targets=("extra",)).steps == 2


def test_shared_libraries_and_explicit_instruction_set(builder: Builder) -> None:
    result = builder.run(targets=("ggml",))
    assert (result.build.bin_dir / ("libggml.dylib" if sys.platform == "darwin" else "libggml.so")).exists()
    cache = (result.build.directory / "CMakeCache.txt").read_text("utf-8")
    assert "GGML_CCACHE:BOOL=OFF" in cache
    assert "CMAKE_BUILD_TYPE:UNINITIALIZED=Release" in cache or "CMAKE_BUILD_TYPE:STRING=Release" in cache


@pytest.mark.skipif(sys.platform != "linux", reason="asks the dynamic linker of Linux")
def test_no_library_is_looked_for_in_the_current_directory(builder: Builder, tmp_path: Path) -> None:
    """Where somebody may have put one: CMake ends a run path with a separator, and behind it is nothing."""
    program = builder.run().build.bin_dir / "test-alloc"
    here = tmp_path / "here"
    here.mkdir()
    for name in ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"):
        (here / name).write_bytes(b"")
    done = subprocess.run([program], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_build_that_was_moved_still_runs(builder: Builder, tmp_path: Path) -> None:
    program = builder.run().build.bin_dir / "test-alloc"
    moved = tmp_path / "moved"
    builder.build_dir.rename(moved)
    subprocess.run([moved / program.relative_to(builder.build_dir)], check=True, capture_output=True)


def test_other_options_lie_elsewhere(builder: Builder) -> None:
    assert builder.run(targets=("ggml",)).build.directory.name == "p1-cpu"
    strict = builder.run(targets=("ggml",), fatal_warnings=True)
    assert (strict.build.directory.name, strict.steps) == ("p1-cpu-werror", 2)


def test_options_changed_under_one_name_configure_anew(builder: Builder) -> None:
    builder.run(targets=("ggml",), variant="mine")
    again = builder.run(targets=("ggml",), variant="mine", fatal_warnings=True)
    assert again.configured
    back = builder.run(targets=("ggml",), variant="mine")
    cache = (back.build.directory / "CMakeCache.txt").read_text("utf-8")
    assert "LLAMA_FATAL_WARNINGS:BOOL=OFF" in cache


def test_clean_starts_from_nothing(builder: Builder) -> None:
    builder.run()
    assert builder.run(clean=True).steps == ALL_STEPS


def test_compile_error_is_shown_in_at_most_ten_lines(builder: Builder) -> None:
    alloc = builder.source.path / "alloc.cpp"
    alloc.write_text("int main() { return undeclared_thing; }\n" * 20, "utf-8")
    with pytest.raises(PyggmlError) as caught:
        builder.run()
    text = str(caught.value)
    assert len(text.splitlines()) <= 10
    assert "alloc.cpp:1" in text
    assert "undeclared_thing" in text
    log = builder.plan().directory / "build.log"
    assert str(log) in text
    assert "FAILED" in log.read_text("utf-8")
    record = read_record(builder.plan().directory)
    assert record is not None
    assert record.state == "failed"


def test_failed_build_finishes_once_the_source_is_mended(builder: Builder) -> None:
    alloc = builder.source.path / "alloc.cpp"
    good = alloc.read_text("utf-8")
    alloc.write_text("#error broken\n", "utf-8")
    with pytest.raises(PyggmlError):
        builder.run()
    alloc.write_text(good, "utf-8")
    result = builder.run()
    assert 2 <= result.steps <= ALL_STEPS
    assert result.build.record.state == "done"


def test_configure_error_is_shown(builder: Builder) -> None:
    (builder.source.path / "CMakeLists.txt").write_text(
        'cmake_minimum_required(VERSION 3.14)\nproject(x C CXX)\nmessage(FATAL_ERROR "no luck today")\n',
        "utf-8",
    )
    with pytest.raises(PyggmlError, match="no luck today") as caught:
        builder.run()
    assert len(str(caught.value).splitlines()) <= 10
    assert read_record(builder.plan().directory) is None


def test_unknown_target_names_its_neighbours(builder: Builder) -> None:
    with pytest.raises(UsageError, match="test-aloc") as caught:
        builder.run(targets=("test-aloc",))
    assert "test-alloc" in str(caught.value.hint)


def test_launcher_is_called_for_compiling_only(builder: Builder, tmp_path: Path) -> None:
    cache = tmp_path / "ccache"
    log = tmp_path / "launched"
    cache.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\nexec "$@"\n')
    cache.chmod(0o755)
    builder.tools = replace(builder.tools, launcher=cache)
    builder.run()
    # lib.c, alloc.cpp and archs.cpp; ggml's own hook would have wrapped the three links too.
    assert len(log.read_text().splitlines()) == 3


def test_a_compiler_cache_that_comes_and_goes_compiles_nothing_again(
    builder: Builder, tmp_path: Path
) -> None:
    cache, log = tmp_path / "ccache", tmp_path / "base"
    cache.write_text(f'#!/bin/sh\necho "$CCACHE_BASEDIR" > "{log}"\nexec "$@"\n')
    cache.chmod(0o755)
    without = builder.tools = replace(builder.tools, launcher=None)
    builder.run()
    builder.tools = replace(without, launcher=cache)
    assert builder.run().steps == 0
    assert any(f"compiler cache: {cache}, used from now on" in text for text in builder.said)
    archs = builder.source.path / "archs.cpp"
    archs.write_text(archs.read_text("utf-8") + "// more\n", "utf-8")
    assert builder.run().steps == 2
    assert log.read_text().strip() == str(tmp_path)
    cache.unlink()
    archs.write_text(archs.read_text("utf-8") + "// and more\n", "utf-8")
    # As long as nobody has noticed, the script itself does without.
    assert builder.run().steps == 2
    builder.tools = without
    assert builder.run().steps == 0
    assert any(f"{cache} is gone" in text for text in builder.said)


def test_other_options_say_why_much_is_compiled_again(builder: Builder) -> None:
    builder.run(targets=("ggml",))
    builder.tools = replace(builder.tools, cxx_flags="-g")
    builder.run(targets=("ggml",))
    assert any("CMAKE_CXX_FLAGS" in text and "compiled again" in text for text in builder.said)


def test_what_does_not_compute_is_not_optimised(builder: Builder) -> None:
    (builder.source.path / "CMakeLists.txt").write_text(
        (builder.source.path / "CMakeLists.txt").read_text("utf-8") + "add_subdirectory(tools/program)\n",
        "utf-8",
    )
    program = builder.source.path / "tools" / "program"
    program.mkdir(parents=True)
    (program / "CMakeLists.txt").write_text("add_executable(program ../../archs.cpp)\n", "utf-8")
    built = builder.run(targets=("program", "test-alloc")).build.directory
    command = [builder.tools.ninja, "-C", built, "-t", "commands", "program", "test-alloc"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    objects = re.findall(r" (\S+\.dir)/\S*\.o -c ", told)
    plain = re.findall(r" -O0 .* (\S+\.dir)/\S*\.o -c ", told)
    assert [Path(one).name for one in plain] == ["program.dir"]
    assert {Path(one).name for one in objects} == {"program.dir", "ggml.dir", "test-alloc.dir"}


def test_what_reads_text_and_models_is_optimised_a_little(builder: Builder) -> None:
    for name in ("unicode", "llama-graph"):
        (builder.source.path / f"{name}.cpp").write_text(f"int {name[:5]}() {{ return 1; }}\n", "utf-8")
    lists = builder.source.path / "CMakeLists.txt"
    added = "add_library(llama STATIC unicode.cpp llama-graph.cpp)\n"
    lists.write_text(lists.read_text("utf-8") + added, "utf-8")
    directory = builder.run(targets=("llama",)).build.directory
    told = (directory / "build.ninja").read_text("utf-8")
    levels = {
        name: re.search(rf"{name}\.cpp\.o: CXX_.*?\n  FLAGS = ([^\n]*)\n", told, re.DOTALL)[1].split()  # type: ignore[index]
        for name in ("unicode", "llama-graph")
    }
    assert [flag for flag in levels["unicode"] if flag.startswith("-O")][-1] == "-O1"
    assert "-O1" not in levels["llama-graph"]


def write_parsers(source: Path, *texts: str) -> None:
    (source / "common" / "parsers").mkdir(parents=True)
    names = [f"parsers/p{number}.cpp" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (source / "common" / name).write_text(text, "utf-8")
    lists = source / "common" / "CMakeLists.txt"
    # Upstream gives whole paths; relative ones are as good.
    names[0] = "${CMAKE_CURRENT_LIST_DIR}/" + names[0]
    added = f"add_library(llama-common STATIC {' '.join(names)})\n"
    lists.write_text(lists.read_text("utf-8") + added, "utf-8")


def test_chat_parsers_are_compiled_as_one_file(builder: Builder) -> None:
    write_parsers(builder.source.path, "int a() { return 1; }\n", "int b() { return 2; }\n")
    assert builder.run(targets=("llama-common",)).steps == 2
    assert builder.run(targets=("llama-common",)).steps == 0
    parser = builder.source.path / "common" / "parsers" / "p1.cpp"
    parser.write_text("int b() { return 3; }\n", "utf-8")
    assert builder.run(targets=("llama-common",)).steps == 2
    assert builder.run(targets=("llama-common",), fatal_warnings=True).steps == 3


def test_chat_parsers_that_exclude_each_other_are_compiled_one_by_one(builder: Builder) -> None:
    write_parsers(
        builder.source.path, *[f"static int same = 1;\nint {n}() {{ return same; }}\n" for n in "ab"]
    )
    assert builder.run(targets=("llama-common",)).steps == 3
    assert any("one by one" in text for text in builder.said)
    builder.said.clear()
    assert builder.run(targets=("llama-common",)).steps == 0
    (builder.source.path / "common" / "parsers" / "p1.cpp").write_text("#error broken\n", "utf-8")
    with pytest.raises(PyggmlError, match="broken"):
        builder.run(targets=("llama-common",))
    assert builder.said == []


def test_failed_assertions_name_the_file_as_the_tree_does(builder: Builder) -> None:
    alloc = builder.source.path / "alloc.cpp"
    alloc.write_text("#include <cstdio>\nint main() { std::puts(__FILE__); }\n", "utf-8")
    program = builder.run(targets=("test-alloc",)).build.bin_dir / "test-alloc"
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "alloc.cpp\n"


def test_killed_compiler_is_told_as_lack_of_memory(builder: Builder, tmp_path: Path) -> None:
    cache = tmp_path / "launcher"
    cache.write_text(
        "#!/bin/sh\necho 'c++: fatal error: Killed signal terminated program cc1plus' >&2\nexit 1\n"
    )
    cache.chmod(0o755)
    builder.tools = replace(builder.tools, launcher=cache)
    with pytest.raises(PyggmlError, match="lack of memory") as caught:
        builder.run()
    assert "--jobs 1" in str(caught.value.hint)
    assert len(str(caught.value).splitlines()) == 2


def test_full_disk_gets_its_own_message(builder: Builder, tmp_path: Path) -> None:
    cache = tmp_path / "launcher"
    cache.write_text(
        "#!/bin/sh\necho 'fatal error: error writing to x.s: No space left on device' >&2\nexit 1\n"
    )
    cache.chmod(0o755)
    builder.tools = replace(builder.tools, launcher=cache)
    with pytest.raises(PyggmlError, match="no space left on device") as caught:
        builder.run()
    assert "continues" in str(caught.value.hint)
    assert len(str(caught.value).splitlines()) == 2


SLOW_BUILD = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script starts in the background
from pathlib import Path
from dataclasses import replace
from pyggml.builder.cmake import build_tree
from pyggml.builder.machine import read_machine
from pyggml.builder.plan import BuildOptions, make_plan
from pyggml.builder.source import Source
from pyggml.builder.toolchain import find_toolchain
from pyggml.errors import PyggmlError
source = Source(Path(sys.argv[1]), "p1", "a" * 40, "b" * 40, dirty=False)
machine = read_machine()
tools = replace(find_toolchain(machine.arch, print), launcher=Path(sys.argv[3]))
plan = make_plan(source.path, Path(sys.argv[2]), "p1", BuildOptions(jobs=1), machine, tools)
try:
    build_tree(plan, tools, source, report=lambda step: print("step", step.done, flush=True))
except PyggmlError as error:
    print(error.message, flush=True)
    sys.exit(getattr(error, "exit_code"))
"""


@pytest.fixture
def slow_launcher(tmp_path: Path) -> Path:
    """A compiler launcher that takes as many seconds over C++ as `slow` says, and says when it starts."""
    path = tmp_path / "slow launcher"
    flag, began = tmp_path / "slow", tmp_path / "began"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *.cpp*) if [ -e "{flag}" ]; then '
        f'echo x >> "{began}"; sleep $(cat "{flag}"); fi;; esac\n'
        'exec "$@"\n'
    )
    path.chmod(0o755)
    flag.write_text("60")
    return path


def start_slow(builder: Builder, launcher: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        SLOW_BUILD,
        str(builder.source.path),
        str(builder.build_dir),
        str(launcher),
    ]
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    deadline = time.monotonic() + 60
    while not launcher.with_name("began").exists():
        assert child.poll() is None, child.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_stops_the_children_and_says_so(
    builder: Builder, slow_launcher: Path, number: signal.Signals
) -> None:
    child = start_slow(builder, slow_launcher)
    started = time.monotonic()
    child.send_signal(number)
    output = child.communicate(timeout=30)[0]
    assert child.returncode == 130, output
    assert "Traceback" not in output
    # The compiler was not waited for.
    assert time.monotonic() - started < 30
    record = read_record(builder.plan().directory)
    assert record is not None
    assert record.state == "building"


def test_build_killed_outright_is_resumed(builder: Builder, slow_launcher: Path) -> None:
    slow_launcher.with_name("slow").write_text("4")
    builder.tools = replace(builder.tools, launcher=slow_launcher)
    child = start_slow(builder, slow_launcher)
    child.kill()
    child.communicate(timeout=30)
    record = read_record(builder.plan().directory)
    assert record is not None
    assert record.state == "building"
    slow_launcher.with_name("slow").unlink()
    result = builder.run()
    assert result.build.record.state == "done"
    # The compilers that outlived their parent were waited for, not raced with.
    assert any("interrupted build left behind" in text for text in builder.said)
    assert subprocess.run([result.build.bin_dir / "test-alloc"], check=False).returncode == 0
    assert builder.run().steps == 0


def test_build_killed_while_configuring_is_configured_again(builder: Builder) -> None:
    result = builder.run()
    # What CMake leaves when it dies: a cache, and no build.ninja.
    (result.build.directory / "build.ninja").unlink()
    assert builder.run().configured


def test_git_variables_of_a_hook_do_not_reach_the_tools(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("CMAKE_GENERATOR", "Unix Makefiles")
    monkeypatch.setenv("NINJA_STATUS", "busy ")
    seen = tmp_path / "environment"
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\nenv > "{seen}"\nexec "$@"\n')
    launcher.chmod(0o755)
    builder.tools = replace(builder.tools, launcher=launcher)
    assert builder.run().steps == ALL_STEPS
    assert "GIT_DIR" not in seen.read_text()
