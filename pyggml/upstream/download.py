"""Downloads one file over HTTP, resuming an interrupted transfer."""

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
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5


class InterruptedTransferError(Exception):
    """The transfer ended early; what arrived is kept."""


def download(
    session: requests.Session,
    url: str,
    part: Path,
    report: Progress,
    timeout: float,
    auth: tuple[str, str] | None = None,
) -> None:
    """Download `url` into `part`, continuing what is there if the server supports it.

    The caller checks the content: a file that changed on the server in between is not noticed here.

    Args:
        timeout: seconds without an answer after which an attempt is given up.

    Raises:
        PyggmlError: there is no network or no such file, the server refuses, or the transfer was interrupted
            several times; what arrived stays in `part`.
    """
    import requests
    import urllib3

    part.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _transfer(session, url, part, report, timeout, auth)
            return
        except (
            InterruptedTransferError,
            requests.ConnectionError,
            requests.Timeout,
            urllib3.exceptions.HTTPError,
        ) as error:
            if attempt == _ATTEMPTS:
                raise _failed(url, part, error) from error
            time.sleep(_PAUSE_SECONDS)
        except requests.RequestException as error:
            raise _failed(url, part, error) from error
        except OSError as error:
            raise PyggmlError(f"cannot write {part}: {error.strerror or error}") from error


def host_of(url: str) -> str:
    """The host of `url` for messages, without any user name and password."""
    return urlsplit(url).hostname or "this machine"


def _failed(url: str, part: Path, error: Exception) -> PyggmlError:
    name = urlsplit(url).path.rpartition("/")[2]
    received = part.stat().st_size if part.exists() else 0
    hint = "Check the network and run the same command again."
    if received:
        hint = f"{received / 1e6:.1f} MB are kept; run the same command again to continue from there."
    return PyggmlError(f"cannot download {name} from {host_of(url)}: {reason(error)}", hint)


def reason(error: Exception) -> str:
    """What went wrong, in a few words and without any URL."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, requests.exceptions.SSLError):
        return "the server's certificate is not trusted here"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy does not answer"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, InterruptedTransferError):
        return str(error)
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return "the transfer was interrupted" if "urllib3" in type(error).__module__ else type(error).__name__


def _transfer(
    session: requests.Session,
    url: str,
    part: Path,
    report: Progress,
    timeout: float,
    auth: tuple[str, str] | None,
) -> None:
    received = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if received:
        headers["Range"] = f"bytes={received}-"
    with session.get(url, headers=headers, stream=True, timeout=timeout, auth=auth) as response:
        content_range = response.headers.get("Content-Range", "")
        if received and response.status_code == 416:
            # There is nothing beyond what we have: it is complete, or not a part of this file at all. The
            # caller's checksum decides, unless the server reports another length.
            if content_range.rpartition("/")[2] == str(received):
                return
            part.unlink()
            raise InterruptedTransferError("the file on the server has changed")
        response.raise_for_status()
        resumed = response.status_code == 206 and content_range.startswith(f"bytes {received}-")
        if received and response.status_code == 206 and not resumed:
            part.unlink()
            raise InterruptedTransferError("the server sent a different part than requested")
        done = received if resumed else 0
        length = response.headers.get("Content-Length", "")
        total_bytes = done + int(length) if length.isdigit() else None
        what = f"downloading {part.name.removesuffix('.part')}"
        with part.open("ab" if resumed else "wb") as file:
            for data in response.raw.stream(_CHUNK, decode_content=False):
                file.write(data)
                done += len(data)
                report(what, done, total_bytes)
        if total_bytes is not None and done != total_bytes:
            raise InterruptedTransferError(
                f"the transfer was interrupted after {done:,} of {total_bytes:,} bytes"
            )
