from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import gguf
import pytest
from click.testing import CliRunner

from pyggml.builder.machine import read_machine
from pyggml.builder.record import Build, BuildRecord, write_record
from pyggml.cli.main import cli
from pyggml.errors import PyggmlError, UsageError
from pyggml.models.make import make_llama
from pyggml.models.shape import ModelShape
from pyggml.models.tiny import architectures, select_architectures, tiny_models

from .conftest import Bench

NAMES = ("llama", "llama4", "qwen3", "qwen3moe", "gpt-oss", "clip")
SOURCE = """
static const std::map<llm_arch, const char *> LLM_ARCH_NAMES = {
    { LLM_ARCH_LLAMA,            "llama"            },
    { LLM_ARCH_LLAMA4,           "llama4"           },
    { LLM_ARCH_QWEN3,            "qwen3"            },
    { LLM_ARCH_QWEN3MOE,         "qwen3moe"         },
    { LLM_ARCH_OPENAI_MOE,       "gpt-oss"          },
    { LLM_ARCH_CLIP,             "clip"             },
    { LLM_ARCH_UNKNOWN,          "(unknown)"        },
};
"""
PROGRAM = """#!/bin/sh
# test-llama-archs -o DIR -s SEED [-a NAME], like upstream's.
echo "$@" >> "{log}"
names="${{6:-llama llama4 qwen3 qwen3moe gpt-oss}}"
for name in $names; do
    [ "$name" = clip ] && continue
    echo "save_models: Saving $name model (dense) to $2/$name-dense.gguf..." >&2
    {step}
    cp "{model}" "$2/$name-dense.gguf" || exit 1
done
"""


class Fake:
    """A build whose test-llama-archs is a script."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        self.model = make_llama(ModelShape(heads=1, kv_heads=1, k_size=2, embd=4, ff=4, vocab=4), root / "m")
        (root / "source" / "src").mkdir(parents=True)
        (root / "source" / "src" / "llama-arch.cpp").write_text(SOURCE)
        directory = root / "b\u00fcild"
        (directory / "bin").mkdir(parents=True)
        (directory / "CMakeCache.txt").write_text(
            f"CMAKE_HOME_DIRECTORY:INTERNAL={root / 'source'}\n", "utf-8"
        )
        record = BuildRecord(
            "v", "p", "done", "a" * 40, "b" * 40, False, "", read_machine().arch, (), {}, (), {}
        )
        write_record(directory, record)
        self.build = Build(directory, record)
        self.program()

    def program(self, step: str = ":") -> None:
        path = self.build.bin_dir / "test-llama-archs"
        path.write_text(PROGRAM.format(log=self.log, model=self.model, step=step))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def runs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    root = tmp_path / "fake \u00fc"
    root.mkdir()
    return Fake(root)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_names_come_from_the_tree_of_the_build(fake: Fake) -> None:
    assert architectures(fake.build) == NAMES


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("llama", ("llama",)),
        ("llama$", ("llama",)),
        ("^qwen3|oss", ("qwen3", "qwen3moe", "gpt-oss")),
        ("lla.a", ("llama", "llama4")),
        (".", NAMES),
    ],
)
def test_exact_name_or_expression(regex: str, expected: tuple[str, ...]) -> None:
    assert select_architectures(NAMES, regex) == expected


def test_bad_expression_and_one_that_matches_nothing() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        select_architectures(NAMES, "llama(")
    with pytest.raises(UsageError, match="no architecture matches 'lama3'") as error:
        select_architectures(NAMES, "lama3")
    assert error.value.hint == "Similar: llama, llama4."


def test_models_are_written_once_and_kept_with_the_build(fake: Fake) -> None:
    first = tiny_models(fake.build, "^qwen3")
    assert first.fresh
    assert [path.name for path in first.files] == ["qwen3-dense.gguf", "qwen3moe-dense.gguf"]
    assert first.directory.is_relative_to(fake.build.directory)
    assert sorted(first.directory.glob("*.gguf")) == sorted(first.files)
    again = tiny_models(fake.build, "^qwen3")
    assert (again.directory, again.files, again.fresh) == (first.directory, first.files, False)
    assert len(fake.runs()) == 2


def test_same_seed_every_time(fake: Fake) -> None:
    tiny_models(fake.build, "llama")
    tiny_models(fake.build)
    seeds = {run.split(" -s ")[1].split()[0] for run in fake.runs()}
    assert len(seeds) == 1


def test_all_is_one_run_and_lists_what_came_out(fake: Fake) -> None:
    result = tiny_models(fake.build)
    assert len(result.files) == 5
    assert len(fake.runs()) == 1


def test_models_of_another_build_are_replaced(fake: Fake) -> None:
    tiny_models(fake.build, "llama")
    fake.program(step=": rebuilt")
    assert tiny_models(fake.build, "llama").fresh
    (fake.build.bin_dir / "libllama.so.0").write_bytes(b"new")
    assert tiny_models(fake.build, "llama").fresh
    (fake.build.bin_dir / "libllama-bench-impl.so").write_bytes(b"does not matter")
    assert not tiny_models(fake.build, "llama").fresh


@pytest.mark.parametrize("harm", ["remove", "cut", "list"])
def test_damaged_models_are_written_again(fake: Fake, harm: str) -> None:
    result = tiny_models(fake.build, "llama")
    if harm == "remove":
        result.files[0].unlink()
    elif harm == "cut":
        os.truncate(result.files[0], 10)
    else:
        (result.directory / "tiny.json").write_bytes(b"{")
    again = tiny_models(fake.build, "llama")
    assert again.fresh
    assert again.files[0].read_bytes() == fake.model.read_bytes()


def test_leftovers_of_a_killed_process_are_ignored(fake: Fake) -> None:
    left = fake.build.directory / "models" / ".llama.new"
    left.mkdir(parents=True)
    (left / "other-dense.gguf").write_bytes(fake.model.read_bytes())
    result = tiny_models(fake.build, "llama")
    assert [path.name for path in result.files] == ["llama-dense.gguf"]
    assert names(result.directory.parent) == ["llama"]


def test_failing_program_keeps_nothing_and_reports_its_last_lines(fake: Fake) -> None:
    fake.program(step='echo "llama.cpp:7: GGML_ASSERT(x) failed" >&2; kill -ABRT $$')
    with pytest.raises(PyggmlError, match="signal 6 at llama") as error:
        tiny_models(fake.build, "llama")
    assert error.value.hint is not None and "GGML_ASSERT(x) failed" in error.value.hint
    assert names(fake.build.directory / "models") == []


def test_model_that_was_not_written_completely(fake: Fake) -> None:
    os.truncate(fake.model, fake.model.stat().st_size - 40)
    with pytest.raises(PyggmlError, match=r"llama-dense\.gguf was not written completely"):
        tiny_models(fake.build, "llama")
    assert names(fake.build.directory / "models") == []


def test_architecture_that_upstream_writes_no_model_for(fake: Fake) -> None:
    with pytest.raises(PyggmlError, match="does not write a model for clip"):
        tiny_models(fake.build, "clip")


def test_build_without_the_program(fake: Fake) -> None:
    (fake.build.bin_dir / "test-llama-archs").unlink()
    with pytest.raises(PyggmlError, match="has no test-llama-archs") as error:
        tiny_models(fake.build)
    assert error.value.hint == "Make it with: pyggml build --target test-llama-archs"


def test_build_for_another_processor(fake: Fake) -> None:
    from dataclasses import replace

    alien = Build(fake.build.directory, replace(fake.build.record, arch="vax"))
    with pytest.raises(PyggmlError, match="is for vax"):
        tiny_models(alien, "llama")
    assert fake.runs() == []


def test_source_that_is_gone(fake: Fake) -> None:
    (fake.root / "source" / "src" / "llama-arch.cpp").unlink()
    with pytest.raises(PyggmlError, match="cannot read the names"):
        tiny_models(fake.build, "llama")
    assert len(tiny_models(fake.build).files) == 5


def test_own_directory_gets_the_models_beside_what_is_there(fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "out" / "new"
    tiny_models(fake.build, "llama", out)
    (out / "mine.txt").write_bytes(b"stays")
    result = tiny_models(fake.build, "qwen3", out)
    assert [path.name for path in result.files] == ["qwen3-dense.gguf"]
    assert names(out) == ["llama-dense.gguf", "mine.txt", "qwen3-dense.gguf"]
    assert not (fake.build.directory / "models").exists()


def test_place_that_cannot_be_written(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PyggmlError, match="cannot write to"):
        tiny_models(fake.build, "llama", tmp_path / "file" / "out")


def test_two_at_once_run_the_program_once(fake: Fake) -> None:
    fake.program(step="sleep 0.3")
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(tiny_models(fake.build, "llama").fresh))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True]
    assert len(fake.runs()) == 1


def test_command(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "vendor").mkdir(parents=True)
    (project / "patches").mkdir()
    (project / "vendor" / "pins.toml").write_bytes(b"")
    (project / ".pyggml" / "build").mkdir(parents=True)
    (project / ".pyggml" / "build" / "v").symlink_to(fake.build.directory)
    start = ["--project", str(project), "model", "tiny", "--variant", "v", "--arch", "^llama"]
    printed = CliRunner().invoke(cli, start).output
    directory = Path(printed.removesuffix("\n"))
    assert len(list(directory.glob("*.gguf"))) == 2
    document = json.loads(CliRunner().invoke(cli, [*start, "--json"]).output)
    assert document["directory"] == str(directory)
    assert document["files"] == [str(directory / f"{name}-dense.gguf") for name in ("llama", "llama4")]
    assert document["fresh"] is False


@pytest.mark.native
def test_upstreams_program_writes_models_that_load(build: Build, bench: Bench, tmp_path: Path) -> None:
    result = tiny_models(build, "^llama$|^gpt2", place=tmp_path)
    assert [path.name for path in result.files] == ["gpt2-dense.gguf", "llama-dense.gguf", "llama-moe.gguf"]
    reader = gguf.GGUFReader(result.files[1])
    assert reader.fields["general.architecture"].contents() == "llama"
    assert len(bench(result.files[1])) == 2
    again = tiny_models(build, "^llama$|^gpt2", place=tmp_path / "b")
    assert [one.read_bytes() for one in again.files] == [one.read_bytes() for one in result.files]
