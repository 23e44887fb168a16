"""Checks Python, its packages, and the registries they come from."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pyggml.doctor.report import Row
from pyggml.upstream.download import host_of
from pyggml.upstream.pip_config import PackageSources, package_sources

HEAD_SECONDS = 3.0
_PACKAGE = "pyggml"


def registry_rows(sources: PackageSources | None = None) -> tuple[Row, ...]:
    """Each package registry that pip uses here, and whether it answers within three seconds.

    Nothing that is fetched and installed already needs a registry, so none of these rows is `missing`.
    """
    sources = package_sources() if sources is None else sources
    locations = list(dict.fromkeys((*sources.indexes, *sources.find_links)))
    if not locations:
        return (Row("network", "registry", "optional", "pip is configured to use none"),)
    with ThreadPoolExecutor(len(locations)) as pool:
        return tuple(pool.map(lambda location: _registry(location, sources), locations))


def _registry(location: str, sources: PackageSources) -> Row:
    parts = urlsplit(location)
    if parts.scheme not in ("http", "https"):
        path = Path(url2pathname(parts.path) if parts.scheme == "file" else location)
        exists = path.exists()
        text = str(path) if exists else f"{path} does not exist"
        return Row("network", "package directory", "ok" if exists else "optional", text)
    import requests

    host = host_of(location)
    try:
        response = requests.head(
            location,
            timeout=HEAD_SECONDS,
            allow_redirects=True,
            verify=sources.cert or True,
            cert=sources.client_cert,
            proxies={"http": sources.proxy, "https": sources.proxy} if sources.proxy else None,
        )
    except (requests.RequestException, OSError) as error:
        reason = "no answer in time" if isinstance(error, requests.Timeout) else "cannot be reached"
        fix = "check the network, or configure a mirror: pip config set global.index-url URL"
        return Row("network", "registry", "optional", f"{host}: {reason}", fix)
    # Some registries refuse HEAD; all that matters is that they answer.
    return Row("network", "registry", "ok", f"{host} answers ({response.status_code})")


def package_rows() -> Iterator[Row]:
    """Python itself, and the packages that pyggml requires."""
    yield Row("python", "Python", "ok", f"{platform.python_version()}, {sys.executable}")
    try:
        own = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        yield Row(
            "python",
            "packages",
            "optional",
            "pyggml is not installed",
            "pip install -e .",
        )
        return
    problems = [problem for line in own.requires or [] if (problem := _unmet(line))]
    if problems:
        yield Row("python", "packages", "missing", "; ".join(problems), f"pip install --upgrade {_PACKAGE}")
    else:
        yield Row("python", "packages", "ok", f"pyggml {own.version} and everything it needs")


def _unmet(line: str) -> str:
    """What is wrong with the requirement `line`; empty if it is met or belongs to an extra."""
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    try:
        installed = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"{requirement.name} is {installed}, but {requirement.specifier} is required"
