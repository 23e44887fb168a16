"""The upstream functions that mirrored rules follow, as they were when the rules were last compared with them.

When this fails, compare the functions with the rules (pyggml/ggml/mirrored.py, SOURCES), then write the new
numbers into mirrored_sources.json: the failure prints them.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from pyggml.ggml.mirrored import SOURCES
from pyggml.project import Project
from pyggml.upstream.cache import cached_path
from pyggml.upstream.pins import Pin, SdistSource, read_pins

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("mirrored_sources.json")
PINS = read_pins(Project(ROOT)).pins
FILES = sorted({file for functions in SOURCES.values() for file in functions})


def sources_of(pin: Pin) -> dict[str, str]:
    """The unpatched files of a pin: from the repository of the work tree, or from the cached archive."""
    tree = ROOT / "vendor" / "llama.cpp"
    texts = {}
    for file in FILES:
        done = subprocess.run(
            ["git", "-C", tree, "show", f"refs/tags/pin/{pin.name}:{file}"], capture_output=True, check=False
        )
        if done.returncode == 0:
            texts[file] = done.stdout.decode("utf-8", "replace")
    if len(texts) == len(FILES):
        return texts
    if isinstance(pin.source, SdistSource):
        archive = cached_path(pin.source.sha256, pin.source.file)
        if archive.is_file():
            return from_archive(archive, pin.source.subdir)
    pytest.skip(f"the source of {pin.name} is neither in vendor/llama.cpp nor in the cache")


def from_archive(archive: Path, subdir: str) -> dict[str, str]:
    texts = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2].removeprefix(f"{subdir}/")
            if name in FILES:
                data = tar.extractfile(member)
                assert data is not None
                texts[name] = data.read().decode("utf-8", "replace")
    return texts


def function_text(source: str, name: str) -> str:
    """All definitions of a function that starts and ends at the beginning of a line, without comments."""
    source = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    head = rf"^(?:[A-Za-z_][\w:<>*& ,]*?[ *&\n])?(?:{name})\([^;{{}}]*\)\s*\{{"
    return "".join(
        " ".join(match[0].split())
        for match in re.finditer(rf"{head}.*?^\}}", source, re.MULTILINE | re.DOTALL)
    )


@pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.name)
def test_the_functions_that_rules_follow_are_as_they_were(pin: Pin) -> None:
    texts = sources_of(pin)
    now = {}
    for source, name in sorted(
        {(file, name) for part in SOURCES.values() for file in part for name in part[file]}
    ):
        text = function_text(texts[source], name)
        assert text, f"{source} of {pin.name} does not define {name}"
        now[f"{source}::{name}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    recorded = json.loads(RECORDED.read_text("utf-8")).get(pin.name, {})
    changed = sorted(name for name in {*now, *recorded} if recorded.get(name) != now.get(name))
    if changed:
        numbers = json.dumps({pin.name: now}, indent=2)
        pytest.fail(f"compare with pyggml/ggml/mirrored.py: {', '.join(changed)}\n{numbers}", pytrace=False)


def test_a_change_of_a_function_shows_and_a_comment_does_not() -> None:
    source = "int f(int a) {\n    return a; // x\n}\n\nint g(void) {\n    return 1;\n}\n"
    assert function_text(source, "f") == "int f(int a) { return a; }"
    assert function_text(source.replace(" // x", ""), "f") == function_text(source, "f")
    assert function_text(source.replace("return a", "return -a"), "f") != function_text(source, "f")
    assert function_text(source, "h") == ""
