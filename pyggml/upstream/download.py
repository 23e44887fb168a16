"""Getting one file over HTTP, going on where an earlier try broke off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyggml.errors import PyggmlError
from pyggml.upstream.progress import Progress

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 18
_TRIES = 3
_PAUSE_SECONDS = 0.5


class BrokenOffError(Exception):
    """The transfer ended early; what arrived is kept."""


def download(
    session: requests.Session,
    url: str,
    part: Path,
    report: Progress,
    timeout: float,
    auth: tuple[str, str] | None = None,
) -> None:
    """Fill `part` with what `url` holds, continuing what is in it where the server can.

    The caller checks the content: a server that has changed the file in between is not noticed here.

    Args:
        timeout: seconds without any answer after which a try is given up.

    Raises:
        PyggmlError: there is no network or no such file, the server refuses, or the transfer broke off
            several times; what arrived stays in `part`.
    """
    import requests
    import urllib3

    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _TRIES + 1):
        try:
            _transfer(session, url, part, report, timeout, auth)
            return
        except (
            BrokenOffError,
            requests.ConnectionError,
            requests.Timeout,
            urllib3.exceptions.HTTPError,
        ) as error:
            if attempt == _TRIES:
                raise _failed(url, part, error) from error
            time.sleep(_PAUSE_SECONDS)
        except requests.RequestException as error:
            raise _failed(url, part, error) from error
        except OSError as error:
            raise PyggmlError(f"cannot write {part}: {error.strerror or error}") from error


def host_of(url: str) -> str:
    """The host of `url` for messages: never the name and password that may stand before it."""
    return urlsplit(url).hostname or "this machine"


def _failed(url: str, part: Path, error: Exception) -> PyggmlError:
    name = urlsplit(url).path.rpartition("/")[2]
    have = part.stat().st_size if part.exists() else 0
    hint = "Check the network and run the same command again."
    if have:
        hint = f"{have / 1e6:.1f} MB are kept: run the same command again and it goes on from there."
    return PyggmlError(f"cannot download {name} from {host_of(url)}: {reason(error)}", hint)


def reason(error: Exception) -> str:
    """What went wrong, in the few words at the bottom of the chain of causes, without any URL."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, requests.exceptions.SSLError):
        return "the server's certificate is not trusted here"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy does not answer"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, BrokenOffError):
        return str(error)
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return "the transfer broke off" if "urllib3" in type(error).__module__ else type(error).__name__


def _transfer(
    session: requests.Session,
    url: str,
    part: Path,
    report: Progress,
    timeout: float,
    auth: tuple[str, str] | None,
) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with session.get(url, headers=headers, stream=True, timeout=timeout, auth=auth) as answer:
        if have and answer.status_code == 416:
            # Nothing lies beyond what is there: complete, or no part of this file at all. The caller's
            # checksum tells, unless the server names another length.
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
            if total == str(have):
                return
            part.unlink()
            raise BrokenOffError("the server has another file than before")
        answer.raise_for_status()
        resumed = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(
            f"bytes {have}-"
        )
        if have and answer.status_code == 206 and not resumed:
            part.unlink()
            raise BrokenOffError("the server sent another part than asked for")
        done = have if resumed else 0
        length = answer.headers.get("Content-Length", "")
        total_bytes = done + int(length) if length.isdigit() else None
        what = f"downloading {part.name.removesuffix('.part')}"
        with part.open("ab" if resumed else "wb") as file:
            for data in answer.raw.stream(_CHUNK, decode_content=False):
                file.write(data)
                done += len(data)
                report(what, done, total_bytes)
        if total_bytes is not None and done != total_bytes:
            raise BrokenOffError(f"the transfer broke off after {done} of {total_bytes} bytes")
