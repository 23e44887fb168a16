"""Finds package files, mostly sdists, in the machine's package sources and keeps them in the cache."""

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
from pyggml.upstream.pip_config import PackageSources, package_sources
from pyggml.upstream.progress import Progress

if TYPE_CHECKING:
    import requests


@dataclass(frozen=True)
class Candidate:
    """Where a wanted file can be found: at a `path` on this machine, or at a `url`.

    Attributes:
        yanked: the index asks not to use it any more.
    """

    file: str
    path: Path | None = None
    url: str = ""
    sha256: str | None = None
    auth: tuple[str, str] | None = None
    yanked: bool = False

    @property
    def place(self) -> str:
        return str(self.path.parent) if self.path is not None else host_of(self.url)


def get_sdist(source: SdistSource, report: Progress, sources: PackageSources | None = None) -> Path:
    """The archive of `source` in the cache; see `get_file`.

    Raises:
        PyggmlError: see `get_file`.
    """
    hint = "Nothing was unpacked. If you trust that file, correct the pin in vendor/pins.toml."
    return get_file(source.project, source.file, source.sha256, report, sources, hint)


def get_file(
    project: str,
    file: str,
    sha256: str,
    report: Progress,
    sources: PackageSources | None = None,
    mismatch_hint: str = "Nothing was unpacked.",
) -> Path:
    """The path in the cache of one file of a package (sdist or wheel), downloaded if necessary and verified.

    If the file is in the cache, neither the network nor pip is used.

    Args:
        sources: where to look; by default where pip would.
        mismatch_hint: the hint if the sources only have a file with another checksum.

    Raises:
        PyggmlError: no source has it, there is no network, or the sources only have a file with another
            checksum.
    """
    target = cached_path(sha256, file)
    with _exclusive(target.parent):
        if target.is_file():
            if file_sha256(target, report) == sha256:
                return target
            target.unlink()
        finder = PackageFinder(project, sources or package_sources(), report)
        failure: PyggmlError | None = None
        for candidate in finder.find(lambda name: name == file):
            if candidate.sha256 in (None, sha256):
                part = target.with_name(f"{target.name}.part")
                try:
                    actual = _obtain(finder, candidate, part, sha256)
                except PyggmlError as error:
                    failure = failure or error
                    continue
                if actual == sha256:
                    part.replace(target)
                    return target
                part.unlink(missing_ok=True)
            else:
                actual = candidate.sha256 or ""
            failure = PyggmlError(
                f"{file} from {candidate.place} has sha256 {actual}, but {sha256} is recorded", mismatch_hint
            )
        if failure is not None:
            raise failure
        raise _not_found(file, target, finder.problems)


def find_sdist(
    project: str, version: str, report: Progress, sources: PackageSources | None = None
) -> SdistSource:
    """Find the sdist of `project` in `version`, put it into the cache and return its description.

    Raises:
        PyggmlError: `version` is not a version, no source has it, or there is no network.
    """
    import packaging.version

    try:
        wanted = packaging.version.Version(version)
    except packaging.version.InvalidVersion as error:
        raise PyggmlError(
            f"{version} is not a version of a Python package", "Write it as PROJECT==VERSION."
        ) from error
    finder = PackageFinder(project, sources or package_sources(), report)
    for candidate in finder.find(lambda name: _is_sdist(name, project, wanted)):
        name = candidate.file
        if candidate.sha256 is not None:
            source = SdistSource(project, version, name, candidate.sha256)
            get_sdist(source, report, sources)
            return source
        incoming = cache_dir() / "incoming"
        with _exclusive(incoming):
            part = incoming / f"{name}.part"
            part.unlink(missing_ok=True)
            digest = _obtain(finder, candidate, part, None)
            target = cached_path(digest, name)
            with _exclusive(target.parent):
                part.replace(target)
        return SdistSource(project, version, name, digest)
    raise _not_found(f"an sdist of {project} {version}", None, finder.problems)


class PackageFinder:
    """Searches the package sources for the files of one project.

    Attributes:
        problems: why sources could not be searched, for the message if no other source has the file.
    """

    def __init__(self, project: str, sources: PackageSources, report: Progress) -> None:
        self.project = project
        self.sources = sources
        self.report = report
        self.problems: list[str] = []
        self._session: requests.Session | None = None

    @property
    def session(self) -> requests.Session:
        """The HTTP session, created when first needed, with pip's certificates and proxy."""
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

    def find(self, matches: Callable[[str], bool]) -> Iterator[Candidate]:
        """Every file whose name `matches`; files on this machine come first."""
        remote: list[tuple[str, bool]] = []
        for link in self.sources.find_links:
            local = _local_path(link)
            if local is None:
                remote.append((link, False))
            else:
                yield from self._in_directory(local, matches)
        for index in self.sources.indexes:
            local = _local_path(index)
            if local is None:
                remote.append((index, True))
            else:
                yield from self._in_directory(local / _normalized(self.project), matches)
        for url, is_index in remote:
            yield from self._at_url(url, is_index, matches)

    def _in_directory(self, directory: Path, matches: Callable[[str], bool]) -> Iterator[Candidate]:
        page = directory
        with contextlib.suppress(OSError):
            if directory.is_dir():
                for path in sorted(directory.iterdir()):
                    if matches(path.name) and path.is_file():
                        yield Candidate(path.name, path=path)
                page = directory / "index.html"
            if page.is_file():
                yield from self._in_page(page.read_bytes(), page.absolute().as_uri(), matches)

    def _in_page(self, html: bytes, base_url: str, matches: Callable[[str], bool]) -> Iterator[Candidate]:
        import pypi_simple

        page = pypi_simple.ProjectPage.from_html(self.project, html, base_url=base_url)
        yield from self._candidates(page.packages, base_url, matches)

    def _candidates(
        self, packages: Iterable[object], base_url: str, matches: Callable[[str], bool]
    ) -> Iterator[Candidate]:
        import pypi_simple

        base = urlsplit(base_url)
        for package in packages:
            assert isinstance(package, pypi_simple.DistributionPackage)  # noqa: S101
            if not is_file_name(package.filename) or not matches(package.filename):
                continue
            digest = package.digests.get("sha256")
            url = package.url.partition("#")[0]
            local = _local_path(url)
            if local is not None:
                # Only a page on this machine may link to files on this machine.
                if base.scheme == "file" and local.is_file():
                    yield Candidate(package.filename, path=local, sha256=digest, yanked=package.is_yanked)
                continue
            auth = None
            if base.username is not None and base.hostname == urlsplit(url).hostname:
                auth = (unquote(base.username), unquote(base.password or ""))
            yield Candidate(package.filename, None, url, digest, auth, package.is_yanked)

    def _at_url(self, url: str, is_index: bool, matches: Callable[[str], bool]) -> Iterator[Candidate]:
        import pypi_simple
        import requests

        self.report(f"asking {host_of(url)} for {self.project}", 0, None)
        try:
            if is_index:
                client = pypi_simple.PyPISimple(url, session=self.session)
                packages = client.get_project_page(self.project, timeout=self.sources.timeout).packages
            else:
                response = self.session.get(url, timeout=self.sources.timeout)
                response.raise_for_status()
                page = pypi_simple.ProjectPage.from_html(self.project, response.content, base_url=url)
                packages = page.packages
        except pypi_simple.NoSuchProjectError:
            return
        except (
            requests.RequestException,
            pypi_simple.UnsupportedContentTypeError,
            pypi_simple.UnsupportedRepoVersionError,
            ValueError,
        ) as error:
            self.problems.append(f"{host_of(url)}: {reason(error)}")
            return
        yield from self._candidates(packages, url, matches)


def _obtain(finder: PackageFinder, candidate: Candidate, part: Path, sha256: str | None) -> str:
    """Copy or download `candidate` into `part` and return its checksum."""
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
    actual = file_sha256(part, finder.report)
    if resuming and actual != sha256:
        # What was there may have been damaged, or part of another file: start again.
        part.unlink()
        _download(finder, candidate, part)
        actual = file_sha256(part, finder.report)
    finder.report(f"checking {name}", 1, 1)
    return actual


def _download(finder: PackageFinder, candidate: Candidate, part: Path) -> None:
    download(finder.session, candidate.url, part, finder.report, finder.sources.timeout, candidate.auth)


@contextlib.contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Hold a directory of the cache against other processes."""
    import filelock

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PyggmlError(
            f"cannot write to the cache {directory}: {error.strerror or error}",
            "Set the environment variable PYGGML_CACHE_DIR to another directory.",
        ) from error
    with filelock.FileLock(directory / ".lock"):
        yield


def _not_found(what: str, target: Path | None, problems: list[str]) -> PyggmlError:
    or_by_hand = f", or put the file at {target}" if target is not None else ""
    if problems:
        return PyggmlError(
            f"cannot get {what}: {'; '.join(problems)}",
            f"Check the network and pip's configuration{or_by_hand}.",
        )
    return PyggmlError(
        f"no package source has {what}", f"Check the sources with `python -m pip config list`{or_by_hand}."
    )


def _is_sdist(name: str, project: str, version: object) -> bool:
    import packaging.version
    import pypi_simple

    try:
        parsed_project, parsed_version, kind = pypi_simple.parse_filename(name, project)
        return (
            kind == "sdist"
            and parsed_project is not None
            and parsed_version is not None
            and _normalized(parsed_project) == _normalized(project)
            and packaging.version.Version(parsed_version) == version
        )
    except (pypi_simple.UnparsableFilenameError, packaging.version.InvalidVersion):
        return False


def _normalized(project: str) -> str:
    import packaging.utils

    return packaging.utils.canonicalize_name(project)


def _local_path(location: str) -> Path | None:
    """`location` as a path on this machine, or None if it is remote."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    if parts.scheme in ("http", "https", "ftp") or "+" in parts.scheme:
        return None
    return Path(location).expanduser()
