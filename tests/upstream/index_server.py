"""A package index on 127.0.0.1 that misbehaves on request."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Index:
    """What is served, and what was requested.

    Attributes:
        files: file name to content, all of the project `up`.
        ranges: whether `Range` is supported.
        cut: how many bytes of the body each of the next responses sends before the connection is closed.
        digests: whether the page has checksums.
        asked: (path, Range header) of every request.
    """

    files: dict[str, bytes]
    ranges: bool = True
    digests: bool = False
    cut: list[int] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def requests_for(self, name: str) -> list[str | None]:
        return [wanted for path, wanted in self.asked if path.endswith(name)]


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    import hashlib

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            index.asked.append((self.path, wanted))
            if self.path == "/simple/up/":
                links = "".join(
                    f'<a href="/files/{name}{self.digest(data)}">{name}</a>'
                    for name, data in index.files.items()
                )
                self.answer(200, f"<html><body>{links}</body></html>".encode(), type_="text/html")
                return
            data = index.files.get(self.path.rpartition("/")[2])
            if not self.path.startswith("/files/") or data is None:
                self.answer(404, b"not here")
                return
            start = re.fullmatch(r"bytes=(\d+)-", wanted or "") if index.ranges else None
            if start is None:
                self.answer(200, data, cut=True)
            elif int(start[1]) >= len(data):
                self.answer(416, b"", extra={"Content-Range": f"bytes */{len(data)}"})
            else:
                first = int(start[1])
                extra = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
                self.answer(206, data[first:], extra=extra, cut=True)

        def digest(self, data: bytes) -> str:
            return f"#sha256={hashlib.sha256(data).hexdigest()}" if index.digests else ""

        def answer(
            self,
            status: int,
            body: bytes,
            *,
            type_: str = "application/octet-stream",
            extra: dict[str, str] | None = None,
            cut: bool = False,
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", type_)
            self.send_header("Content-Length", str(len(body)))
            for key, value in (extra or {}).items():
                self.send_header(key, value)
            self.end_headers()
            if cut and index.cut:
                body = body[: index.cut.pop(0)]
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
