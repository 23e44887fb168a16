"""`pyggml init`, and the project that `pyggml up` creates if there is none."""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePosixPath

import click
import pytest
from click.testing import CliRunner

from pyggml import scaffold
from pyggml.cli.main import cli
from pyggml.cli.up import project_or_new
from pyggml.errors import PyggmlError
from pyggml.files import write_atomic
from pyggml.project import Project, find_project, is_project
from pyggml.scaffold import TEMPLATE, bundled_files, new_project, place_for_bundled
from pyggml.upstream.pins import read_pins

PINS = PurePosixPath("vendor/pins.toml")


def init(*args: str) -> str:
    result = CliRunner().invoke(cli, ["init", *args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_init_gives_the_bundled_pins_without_patches(tmp_path: Path) -> None:
    output = init(str(tmp_path / "my förk"))
    root = tmp_path / "my förk"
    assert is_project(root)
    assert (root / "vendor" / "pins.toml").read_bytes() == bundled_files(patches=False)[PINS]
    assert [path.name for path in (root / "patches").iterdir()] == [".gitkeep"]
    assert {"/vendor/*", "!/vendor/pins.toml", "/.pyggml/"} <= set(
        (root / ".gitignore").read_text().splitlines()
    )
    assert "/patches/*/series.toml merge=pyggml-series\n" in (root / ".gitattributes").read_text()
    assert "pyggml up" in output
    assert output.count("  pyggml ") == 2
    assert f"  cd '{root}'" in output


def test_init_empty_is_a_valid_project_without_pins(tmp_path: Path) -> None:
    output = init(str(tmp_path), "--empty")
    assert read_pins(Project(tmp_path)).pins == ()
    assert "pyggml vendor add" in output


def test_template_is_right_when_uncommented() -> None:
    lines = TEMPLATE.decode().splitlines()
    examples = [line.removeprefix("# ") for line in lines if line.startswith(("# default", "# [", "# commit", "# tree",
                "# exclude", "# kind", "# url"))]  # fmt: skip
    plain = [line for line in lines if not line.startswith("#")]
    document = tomllib.loads("\n".join(plain + examples))
    assert document["upstream"] == "llama.cpp"
    assert document["default"] in document["pin"]
    assert set(document["pin"]["mine"]) == {"commit", "tree", "exclude", "source"}


def test_init_refuses_a_project(tmp_path: Path) -> None:
    init(str(tmp_path))
    before = snapshot(tmp_path)
    for args in ((), ("--empty",)):
        with pytest.raises(PyggmlError, match="already"):
            init(str(tmp_path), *args)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["patches/0001-mine.patch", "vendor/pins.toml", "vendor/thing/x.c", "patches"]
)
def test_init_overwrites_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(PyggmlError, match=r"in the way|already"):
        init(str(tmp_path))
    assert snapshot(tmp_path) == before


def test_init_leaves_a_link_out_of_the_directory_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "patches").symlink_to(outside)
    with pytest.raises(PyggmlError, match="in the way"):
        init(str(tmp_path / "p"))
    assert list(outside.iterdir()) == []


def test_init_keeps_an_existing_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"*.o\n/.pyggml/\n# caf\xe9")
    (tmp_path / "README.md").write_text("mine")
    init(str(tmp_path))
    data = (tmp_path / ".gitignore").read_bytes()
    assert data.startswith(b"*.o\n/.pyggml/\n# caf\xe9\n")
    assert data.count(b"/.pyggml/") == 1
    assert b"!/vendor/pins.toml\n" in data


def test_half_written_project_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        PINS: b'upstream = "x"\n',
        PurePosixPath("patches/p1/0001-a.patch"): b"a",
        PurePosixPath("patches/b"): b"b",
    }
    written: list[str] = []

    def dies_at_the_pins(path: Path, data: bytes) -> None:
        if path.name == "pins.toml":
            raise KeyboardInterrupt
        written.append(path.name)
        write_atomic(path, data)

    monkeypatch.setattr(scaffold, "write_atomic", dies_at_the_pins)
    with pytest.raises(KeyboardInterrupt):
        new_project(tmp_path, files)
    assert "0001-a.patch" in written
    assert not is_project(tmp_path)
    monkeypatch.undo()
    new_project(tmp_path, files)
    assert is_project(tmp_path)
    assert (tmp_path / "patches" / "p1" / "0001-a.patch").read_bytes() == b"a"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as installed from a wheel: with `_project` inside, and no repository around it."""
    package = tmp_path / "site" / "pyggml"
    data = package / "_project"
    (data / "patches" / "p1").mkdir(parents=True)
    (data / "vendor").mkdir()
    (data / "vendor" / "pins.toml").write_bytes(b'upstream = "llama.cpp"\n')
    (data / "patches" / "p1" / "0001-x.patch").write_bytes(b"caf\xe9\n")
    monkeypatch.setattr(scaffold, "__file__", str(package / "scaffold.py"))
    return package


def test_bundled_project_comes_from_the_package(installed: Path) -> None:
    assert bundled_files(patches=True) == {
        PINS: b'upstream = "llama.cpp"\n',
        PurePosixPath("patches/p1/0001-x.patch"): b"caf\xe9\n",
    }
    assert set(bundled_files(patches=False)) == {PINS}


def test_installation_without_its_project_says_so(installed: Path) -> None:
    (installed / "_project" / "vendor" / "pins.toml").unlink()
    with pytest.raises(PyggmlError, match="lacks the bundled project"):
        bundled_files(patches=True)


def up_here(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(directory)
    with click.Context(cli, obj={"project": None}):
        return project_or_new()


def test_up_in_an_empty_directory_makes_the_project_there(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "leer ü"
    (here / ".git").mkdir(parents=True)
    made = up_here(here, monkeypatch)
    assert made.root == here
    assert (here / "patches" / "p1" / "0001-x.patch").read_bytes() == b"caf\xe9\n"
    assert str(here) in capsys.readouterr().err
    assert up_here(here, monkeypatch).root == here


def test_up_beside_other_files_makes_a_directory_and_finds_it_again(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "work"
    here.mkdir()
    (here / "thesis.tex").write_text("x")
    assert place_for_bundled(here) == here / "pyggml-project"
    first = up_here(here, monkeypatch)
    assert first.root == here / "pyggml-project"
    assert up_here(here, monkeypatch).root == first.root
    assert sorted(path.name for path in here.iterdir()) == ["pyggml-project", "thesis.tex"]


def test_up_inside_a_project_uses_it(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(str(tmp_path / "p"), "--empty")
    inside = tmp_path / "p" / "patches"
    assert up_here(inside, monkeypatch).root == tmp_path / "p"
    assert find_project(inside).root == tmp_path / "p"
