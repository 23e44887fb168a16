"""Python, its packages, and the registries that they come from."""

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

    No registry is needed for what is fetched and installed already, so none of these rows is `missing`.
    """
    sources = package_sources() if sources is None else sources
    places = list(dict.fromkeys((*sources.indexes, *sources.find_links)))
    if not places:
        return (Row("network", "registry", "optional", "pip is configured to use none"),)
    with ThreadPoolExecutor(len(places)) as pool:
        return tuple(pool.map(lambda place: _registry(place, sources), places))


def _registry(place: str, sources: PackageSources) -> Row:
    parts = urlsplit(place)
    if parts.scheme not in ("http", "https"):
        path = Path(url2pathname(parts.path) if parts.scheme == "file" else place)
        there = path.exists()
        text = f"{path} {'is there' if there else 'is not there'}"
        return Row("network", "package folder", "ok" if there else "optional", text)
    import requests

    host = host_of(place)
    try:
        answer = requests.head(
            place,
            timeout=HEAD_SECONDS,
            allow_redirects=True,
            verify=sources.cert or True,
            cert=sources.client_cert,
            proxies={"http": sources.proxy, "https": sources.proxy} if sources.proxy else None,
        )
    except (requests.RequestException, OSError) as error:
        why = "no answer in time" if isinstance(error, requests.Timeout) else "not reached"
        fix = "check the network, or tell pip of a mirror: pip config set global.index-url URL"
        return Row("network", "registry", "optional", f"{host}: {why}", fix)
    # Some registries do not answer HEAD; that they answer at all is what counts.
    return Row("network", "registry", "ok", f"{host} answers ({answer.status_code})")


def package_rows() -> Iterator[Row]:
    """Python itself, and the packages that pyggml says it needs."""
    yield Row("python", "Python", "ok", f"{platform.python_version()}, {sys.executable}")
    try:
        own = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        yield Row("python", "packages", "optional", "pyggml runs uninstalled", "pip install -e .")
        return
    wrong = [told for line in own.requires or [] if (told := _unmet(line))]
    if wrong:
        yield Row("python", "packages", "missing", "; ".join(wrong), f"pip install --upgrade {_PACKAGE}")
    else:
        yield Row("python", "packages", "ok", f"pyggml {own.version} and everything that it needs")


def _unmet(line: str) -> str:
    """What is wrong with the requirement `line`; empty when it is met or belongs to an extra."""
    from packaging.requirements import Requirement

    wanted = Requirement(line)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return ""
    try:
        found = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{wanted.name} is not installed"
    if wanted.specifier.contains(found, prereleases=True):
        return ""
    return f"{wanted.name} is {found}, and {wanted.specifier} is needed"
