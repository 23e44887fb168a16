from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from pyggml.upstream import download, package_files
from pyggml.upstream.cache import cached_path
from pyggml.upstream.pins import SdistSource
from pyggml.upstream.pip_config import DEFAULT_INDEX, PackageSources, from_settings, package_sources
from pyggml.upstream.progress import silent
from tests.upstream.helpers import GOOD, Upstream, fetch, leftovers, pyggml, sdist_pin, tree_id, write_project
from tests.upstream.index_server import Index, serving

DATA = bytes(range(256)) * 3000
FILE = "up-1.0.tar.gz"
SOURCE = SdistSource("up", "1.0", FILE, hashlib.sha256(DATA).hexdigest())


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0.0)


@pytest.fixture
def index() -> Iterator[Index]:
    with serving(
        Index({FILE: DATA, "up-1.0-py3-none-any.whl": b"wheel", "up-0.9.tar.gz": b"old"})
    ) as running:
        yield running


def over(index: Index, **more: object) -> PackageSources:
    return PackageSources(indexes=(index.url,), timeout=5, **more)  # type: ignore[arg-type]


def get(index: Index) -> bytes:
    return package_files.get_sdist(SOURCE, silent, over(index)).read_bytes()


def part_file() -> Path:
    return cached_path(SOURCE.sha256, f"{FILE}.part")


def test_download_is_cached_and_not_repeated(index: Index) -> None:
    assert get(index) == DATA
    assert cached_path(SOURCE.sha256, FILE).read_bytes() == DATA
    asked = len(index.asked)
    assert get(index) == DATA
    assert len(index.asked) == asked


def test_cached_archive_needs_neither_network_nor_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream(tmp_path / "up", GOOD)
    project = write_project(tmp_path / "project", one=sdist_pin(upstream.sha256, tree_id(GOOD)))
    cached = cached_path(upstream.sha256, FILE)
    cached.parent.mkdir(parents=True)
    cached.write_bytes(upstream.path.read_bytes())

    def never(*_: object) -> PackageSources:
        raise AssertionError("asked for package sources")

    monkeypatch.setattr(package_files, "package_sources", never)
    assert fetch(project).changed


def test_damaged_cached_archive_is_replaced(index: Index) -> None:
    cached = cached_path(SOURCE.sha256, FILE)
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"damaged")
    assert get(index) == DATA


@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_transfer_is_resumed(index: Index, ranges: bool) -> None:
    index.ranges = ranges
    index.cut = [100_000, 200_000]
    assert get(index) == DATA
    assert index.requests_for(FILE)[0] is None
    if ranges:
        assert index.requests_for(FILE) == [None, "bytes=100000-", "bytes=300000-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_next_run_resumes_what_an_earlier_one_left(index: Index, ranges: bool) -> None:
    index.ranges = ranges
    index.cut = [50_000, 0, 0] if ranges else [50_000, 50_000, 50_000]
    with pytest.raises(PyggmlError, match="cannot download") as error:
        get(index)
    assert error.value.hint is not None and "continue from there" in error.value.hint
    assert part_file().read_bytes() == DATA[:50_000]
    index.asked.clear()
    assert get(index) == DATA
    assert index.requests_for(FILE) == ["bytes=50000-"]
    assert not part_file().exists()


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * len(DATA), b"x" * (len(DATA) + 1), DATA])
def test_part_file_of_something_else_costs_one_more_transfer_at_most(index: Index, left: bytes) -> None:
    part_file().parent.mkdir(parents=True)
    part_file().write_bytes(left)
    assert get(index) == DATA


def test_wrong_checksum_keeps_nothing(index: Index) -> None:
    index.files[FILE] = b"tampered"
    with pytest.raises(PyggmlError, match="has sha256") as error:
        get(index)
    assert hashlib.sha256(b"tampered").hexdigest() in error.value.message
    assert SOURCE.sha256 in error.value.message
    assert not part_file().exists() and not cached_path(SOURCE.sha256, FILE).exists()


def test_checksum_told_by_the_index_saves_the_transfer(index: Index) -> None:
    index.digests = True
    index.files[FILE] = b"tampered"
    with pytest.raises(PyggmlError, match="has sha256"):
        get(index)
    assert index.requests_for(FILE) == []


def test_second_index_has_the_right_one(index: Index) -> None:
    with serving(Index({FILE: b"another build"})) as first:
        sources = PackageSources(indexes=(first.url, index.url), timeout=5)
        assert package_files.get_sdist(SOURCE, silent, sources).read_bytes() == DATA


def test_no_network_says_so_in_two_lines(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", one=sdist_pin("0" * 64, "0" * 40))
    done = pyggml(project, "vendor", "fetch", PIP_NO_INDEX="0", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert done.returncode == 1
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("asking ")]
    assert len(lines) == 2
    assert FILE in lines[0] and "127.0.0.1" in lines[0]
    assert "Check the network" in lines[1]
    assert leftovers(project) == []


def test_credentials_in_an_index_url_are_used_but_never_shown() -> None:
    sources = PackageSources(indexes=("http://user:hunter2@127.0.0.1:9/simple",), timeout=1)
    with pytest.raises(PyggmlError) as error:
        package_files.get_sdist(SOURCE, silent, sources)
    assert "hunter2" not in str(error.value)


def test_file_that_no_index_has(index: Index) -> None:
    with pytest.raises(PyggmlError, match="no package source has gone-1"):
        package_files.get_sdist(SdistSource("up", "1.0", "gone-1.tar.gz", "0" * 64), silent, over(index))
    with pytest.raises(PyggmlError, match="no package source has"):
        package_files.get_sdist(SdistSource("other", "1.0", FILE, "0" * 64), silent, over(index))


@pytest.mark.parametrize("how", ["path", "url", "folder-with-page", "index", "index-with-page"])
def test_folders_on_this_machine(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "wheels and\u00e4"
    place = folder / "up" if how.startswith("index") else folder
    place.mkdir(parents=True)
    if how.endswith("page"):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / FILE).write_bytes(DATA)
        back = "../../elsewhere" if how.startswith("index") else "../elsewhere"
        (place / "index.html").write_text(f'<a href="{back}/{FILE}#sha256={SOURCE.sha256}">{FILE}</a>')
    else:
        (place / FILE).write_bytes(DATA)
    if how.startswith("index"):
        sources = PackageSources(indexes=(folder.as_uri(),))
    else:
        link = str(folder) if how == "path" else folder.as_uri()
        sources = PackageSources(indexes=(), find_links=(link,))
    path = package_files.get_sdist(SOURCE, silent, sources)
    assert path.read_bytes() == DATA
    assert path.is_relative_to(os.environ["PYGGML_CACHE_DIR"])


def test_remote_page_cannot_name_files_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / FILE
    secret.write_bytes(DATA)
    page = f'<a href="{secret.as_uri()}">{FILE}</a>'
    finder = package_files.PackageFinder("up", PackageSources(), silent)
    assert list(finder._in_page(page.encode(), "http://127.0.0.1/simple/up/", lambda name: True)) == []


@pytest.mark.parametrize("digests", [True, False])
def test_find_sdist_takes_the_sdist_of_that_version(index: Index, digests: bool) -> None:
    index.digests = digests
    source = package_files.find_sdist("Up", "1.0.0", silent, over(index))
    assert (source.file, source.sha256) == (FILE, SOURCE.sha256)
    assert cached_path(SOURCE.sha256, FILE).read_bytes() == DATA


def test_find_sdist_of_a_version_that_is_not_there(index: Index) -> None:
    with pytest.raises(PyggmlError, match=r"an sdist of up 3\.0"):
        package_files.find_sdist("up", "3.0", silent, over(index))
    with pytest.raises(PyggmlError, match="not a version"):
        package_files.find_sdist("up", "latest", silent, over(index))


def test_pip_settings_environment_over_section_over_global() -> None:
    index = "{}.index-url='{}://{}.example/simple'\n"
    sources = from_settings(
        "".join(index.format(section, "https", section) for section in ("global", "download", "wheel"))
        + "global.find-links='\\n/one\\n/two'\n"
        ":env:.extra-index-url='" + "https://a.example/simple https://b.example/simple" + "'\n"
        ":env:.default-timeout='180'\n"
        "global.cert='/certs.pem'\nglobal.proxy='http://proxy.example:3128'\n"
        "nonsense\nglobal.timeout=__import__('os')\n"
    )
    assert sources == PackageSources(
        indexes=("https://download.example/simple", "https://a.example/simple", "https://b.example/simple"),
        find_links=("/one", "/two"),
        cert="/certs.pem",
        proxy="http://proxy.example:3128",
        timeout=180.0,
    )


def test_without_settings_it_is_the_public_index() -> None:
    assert from_settings("").indexes == (DEFAULT_INDEX,)
    assert from_settings("global.no-index='true'\n").indexes == ()
    assert from_settings("global.no-index='false'\n").indexes == (DEFAULT_INDEX,)


def test_pip_configuration_file_is_asked_for_through_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nextra-index-url =\n    https://one.example/simple\n    https://two.example/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "https://env.example/simple")
    # The system's own pip.conf may add find-links and certificates, but not to the indexes given here.
    assert package_sources(sys.executable).indexes == (
        "https://env.example/simple",
        "https://one.example/simple",
        "https://two.example/simple",
    )


def test_machine_without_pip_goes_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "https://env.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    for python in ("/bin/false", str(tmp_path / "gone")):
        sources = package_sources(python)
        assert (sources.indexes, sources.find_links) == (("https://env.example/simple",), ("/wheels",))


@pytest.mark.network
def test_real_sdist_gives_the_recorded_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyggml.project import Project
    from pyggml.upstream.pins import read_pins

    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_CONFIG_FILE")
    (tmp_path / "project" / "patches").mkdir(parents=True)
    (tmp_path / "project" / "vendor").mkdir()
    recorded = Path(__file__).parents[2] / "vendor" / "pins.toml"
    (tmp_path / "project" / "vendor" / "pins.toml").write_bytes(recorded.read_bytes())
    project = Project(tmp_path / "project")
    result = fetch(project)
    assert result.tree == read_pins(project).get(None).tree
