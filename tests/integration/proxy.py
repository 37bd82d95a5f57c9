"""A TCP proxy between a worker and its memory that loses replies or holds requests back."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self


class Proxy:
    """Forwards to ``port``.

    Attributes:
        drop_reply: while it says yes to a request, its reply is lost and the connection cut.
        hold: while it says yes to a request, the request waits until :meth:`release`, and its
            connection gets no reply.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.drop_reply: Callable[[bytes], bool] = lambda _: False
        self.hold: Callable[[bytes], bool] = lambda _: False
        self.held: list[bytes] = []
        self.dropped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._listener.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def release(self) -> int:
        """Deliver what was held, each on a connection of its own; how many there were."""
        held, self.held = self.held, []
        for request in held:
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                server.sendall(request)
                server.recv(65536)
        return len(held)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            while request := client.recv(1 << 20):
                if self.hold(request):
                    self.held.append(request)
                    continue  # the client waits for a reply that does not come
                server.sendall(request)
                reply = server.recv(1 << 20)
                if self.drop_reply(request):
                    self.dropped += 1
                    return
                client.sendall(reply)
