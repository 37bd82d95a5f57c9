"""A server in the place of Sentry's: keeps every envelope that a client sends."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class SentrySink:
    """Receives envelopes on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.envelopes: list[bytes] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self._server.server_address[1]}/1"

    def items(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The type and the JSON of everything in the envelopes: events, transactions, ..."""
        for envelope in self.envelopes:
            _, _, rest = envelope.partition(b"\n")
            while rest.strip():
                line, _, rest = rest.partition(b"\n")
                header = json.loads(line)
                length = header.get("length", rest.find(b"\n"))
                yield header["type"], json.loads(rest[:length])
                rest = rest[length:].lstrip(b"\n")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                zipped = self.headers["Content-Encoding"] == "gzip"
                sink.envelopes.append(gzip.decompress(body) if zipped else body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        return Handler
