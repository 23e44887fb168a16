"""Where this machine gets Python packages from: pip's own configuration.

A mirror, a proxy or a private certificate that pip knows about works here as well.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from pypi_simple import PYPI_SIMPLE_ENDPOINT

DEFAULT_INDEX = PYPI_SIMPLE_ENDPOINT.rstrip("/")
_DEFAULT_TIMEOUT_SECONDS = 15.0
_SECTIONS = ("global", "install", "download", ":env:")
"""Later ones override earlier ones, as in pip (https://pip.pypa.io/en/stable/topics/configuration/)."""
_FALSE = ("", "0", "no", "false", "off")


@dataclass(frozen=True)
class PackageSources:
    """Where packages come from, and how to reach it.

    Attributes:
        indexes: URLs of simple indexes, in pip's order.
        find_links: directories, files or URLs with links to archives.
        cert: a file or directory of certificates to trust.
        client_cert: a file with a client certificate and key.
        proxy: the URL of a proxy.
        timeout: seconds to wait for an answer.
    """

    indexes: tuple[str, ...] = (DEFAULT_INDEX,)
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = _DEFAULT_TIMEOUT_SECONDS


def package_sources(python: str = sys.executable) -> PackageSources:
    """This machine's package sources, from `python -m pip config list` and the environment.

    Args:
        python: the interpreter whose pip is asked.
    """
    return from_settings(_pip_config_list(python) + _environment())


def from_settings(lines: str) -> PackageSources:
    """The sources configured by `section.key='value'` lines, as pip prints them."""
    settings: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in lines.splitlines():
        name, _, literal = line.partition("=")
        section, _, key = name.rpartition(".")
        if section not in settings:
            continue
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            continue
        settings[section][key.replace("_", "-")] = str(value)
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged |= settings[section]
    return _sources(merged)


def _sources(merged: Mapping[str, str]) -> PackageSources:
    indexes: list[str] = []
    if merged.get("no-index", "").strip().lower() in _FALSE:
        indexes = [merged.get("index-url", "").strip() or DEFAULT_INDEX]
        indexes += merged.get("extra-index-url", "").split()
    try:
        timeout = float(merged.get("timeout") or merged.get("default-timeout") or _DEFAULT_TIMEOUT_SECONDS)
    except ValueError:
        timeout = _DEFAULT_TIMEOUT_SECONDS
    return PackageSources(
        indexes=tuple(dict.fromkeys(indexes)),
        find_links=tuple(dict.fromkeys(merged.get("find-links", "").split())),
        cert=merged.get("cert") or None,
        client_cert=merged.get("client-cert") or None,
        proxy=merged.get("proxy") or None,
        timeout=timeout,
    )


def _pip_config_list(python: str) -> str:
    command = [python, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") + "\n" if done.returncode == 0 else ""


def _environment() -> str:
    names = (name for name in sorted(os.environ) if name.startswith("PIP_"))
    return "".join(
        f":env:.{name.removeprefix('PIP_').lower().replace('_', '-')}={os.environ[name]!r}\n"
        for name in names
    )
