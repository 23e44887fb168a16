from __future__ import annotations

from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.upstream.pins import GitSource, Pin, SdistSource, read_pins, write_pin
from tests.upstream.helpers import Upstream, write_project

TREE = "a" * 40
TEXT = f"""# my project
upstream = "llama.cpp"   # where it goes
default = "old"

[pin.old]  # the old one
tree = "{TREE}"
[pin.old.source]
kind = "sdist"
project = "p"
version = "1"
file = "p-1.tar.gz"
sha256 = "{"b" * 64}"
"""


@pytest.fixture
def empty(tmp_path: Path) -> Project:
    (tmp_path / "patches").mkdir()
    (tmp_path / "vendor").mkdir()
    return Project(tmp_path)


def written(project: Project, text: str) -> Project:
    project.pins_file.write_text(text, "utf-8")
    return project


def test_recorded_pins_of_this_repository_are_valid_and_in_order() -> None:
    pins = read_pins(Project(Path(__file__).parents[2]))
    assert [pin.name for pin in pins.pins] == ["4df29be4f", "0c1e57098", "b11549"]
    assert (pins.upstream, pins.default) == ("llama.cpp", "b11549")
    # A pin is named after upstream's commit, or after its build if the package does not say of which commit it is.
    assert all(pin.commit.startswith(pin.name) for pin in pins.pins if pin.commit is not None)
    assert [pin.commit is None for pin in pins.pins] == [False, False, True]
    subdirs = [pin.source.subdir for pin in pins.pins if isinstance(pin.source, SdistSource)]
    assert subdirs == ["vendor/llama.cpp", "vendor/llama.cpp", "thirdparty/llama.cpp"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"llama.cpp"', '"../up"', "upstream must be a plain directory name"),
        ('"llama.cpp"', '".git"', "upstream must be a plain directory name"),
        ('"llama.cpp"', '"pins.toml"', "upstream must be a plain directory name"),
        ('"llama.cpp"', "3", "upstream must be a plain directory name"),
        ('default = "old"', 'default = "new"', "default must be one of the pins (old)"),
        ('default = "old"', "", "default must be the name of a pin"),
        (f'"{TREE}"', '"abc"', "pin.old.tree must be a full git tree id"),
        ("tree =", "treee =", "unknown key 'treee' in [pin.old]"),
        (
            'kind = "sdist"',
            'kind = "svn"',
            "pin.old.source.kind must be one of sdist, git, archive, directory",
        ),
        ('"p-1.tar.gz"', '"../p.tar.gz"', "pin.old.source.file must be a file name"),
        ('"p-1.tar.gz"', '".part"', "pin.old.source.file must be a file name"),
        ('version = "1"', "version = 1.0", "pin.old.source.version must be a non-empty string"),
        ("b" * 64, "B" * 64, "pin.old.source.sha256 must be 64 lowercase hex digits"),
        (
            "[pin.old.source]",
            'exclude = ["../x"]\n[pin.old.source]',
            "pin.old.exclude must be a list of relative",
        ),
        ("[pin.old.source]", 'exclude = "x"\n[pin.old.source]', "pin.old.exclude must be a list of relative"),
        ('version = "1"', 'version = "1"\nsubdir = "/x"', "pin.old.source.subdir must be a relative path"),
        ('project = "p"', 'project = "p/../q"', "pin.old.source.project must be"),
        ("[pin.old.source]", "[pin.old.sauce]", "unknown key 'sauce'"),
        ("[pin.old", '[pin."a..b"', "'a..b' is not a valid pin name"),
        ("[pin.old", '[pin."x.lock"', "'x.lock' is not a valid pin name"),
        ("[pin.old", '[pin."a b"', "'a b' is not a valid pin name"),
        ("[pin.old", '[pin."-x"', "'-x' is not a valid pin name"),
        ('"llama.cpp"', "llama.cpp", "is not valid TOML"),
    ],
)
def test_invalid_value_is_reported_with_file_and_key(empty: Project, old: str, new: str, told: str) -> None:
    assert old in TEXT
    with pytest.raises(PyggmlError) as error:
        read_pins(written(empty, TEXT.replace(old, new)))
    assert told in error.value.message
    assert str(empty.pins_file) in error.value.message
    assert len(str(error.value).splitlines()) <= 2


def test_git_source_needs_a_commit(empty: Project) -> None:
    text = (
        f'upstream = "up"\ndefault = "x"\n[pin.x]\ntree = "{TREE}"\n[pin.x.source]\nkind = "git"\nurl = "u"\n'
    )
    with pytest.raises(PyggmlError, match=r"pin\.x\.commit must be a full commit id"):
        read_pins(written(empty, text))


def test_file_that_is_not_text_or_not_there(empty: Project) -> None:
    with pytest.raises(PyggmlError, match="cannot read"):
        read_pins(empty)
    empty.pins_file.write_bytes(b"upstream = '\xff'")
    with pytest.raises(PyggmlError, match="not UTF-8"):
        read_pins(empty)


def test_added_pin_comes_last_and_comments_stay(empty: Project) -> None:
    written(empty, TEXT)
    pin = Pin(
        "1.5-new", "c" * 40, TREE, ("do cs", "\u00e4"), GitSource("https://example.org/x.git", "in/side")
    )
    write_pin(empty, pin, make_default=False)
    assert empty.pins_file.read_text("utf-8").startswith(TEXT.rstrip())
    assert [one.name for one in read_pins(empty).pins] == ["old", "1.5-new"]
    assert read_pins(empty).get("1.5-new") == pin
    assert read_pins(empty).default == "old"
    with pytest.raises(PyggmlError, match="already a pin"):
        write_pin(empty, pin, make_default=True)


def test_first_pin_becomes_the_default(empty: Project) -> None:
    written(empty, 'upstream = "up"  # mine\n')
    assert read_pins(empty).pins == ()
    with pytest.raises(PyggmlError, match="no pins yet"):
        read_pins(empty).get(None)
    pin = Pin("x", None, TREE, (), SdistSource("p", "1", "p-1.tar.gz", "b" * 64))
    write_pin(empty, pin, make_default=False)
    assert read_pins(empty).get(None) == pin
    assert "# mine" in empty.pins_file.read_text()


def test_second_pin_can_become_the_default(tmp_path: Path, upstream: Upstream) -> None:
    project = write_project(tmp_path / "project", one=upstream.pin())
    pin = Pin("two", None, TREE, (), SdistSource("p", "1", "p-1.tar.gz", "b" * 64))
    write_pin(project, pin, make_default=True)
    assert read_pins(project).get(None) == pin
