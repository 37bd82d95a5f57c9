"""A way to a server on which connections can die without a word to either end."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class SilentProxy:
    """Passes bytes on, until :meth:`lose_all`: what was open then stays open, and carries nothing.

    That is what a firewall makes of connections that it forgot. New ones are as good as ever.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lost: set[int] = set()

    @property
    def url(self) -> str:
        port = self._listener.getsockname()[1]
        return urlunsplit(self._target._replace(netloc=f"127.0.0.1:{port}"))

    def lose_all(self) -> None:
        self._lost.update(map(id, self._open))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for line in (self._listener, *self._open):
            line.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self._target.hostname, self._target.port))
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if id(source) not in self._lost:
                    sink.sendall(data)
            sink.close()
