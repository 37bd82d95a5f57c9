"""An exchange with a server in a few system calls.

redis-py gives a socket a new timeout before each read and takes it back afterwards, a system call
each. An emit is little else. So where a whole timeout lies ahead, the socket keeps the one that it
has, and is written and read directly, by the rules of redis-py's parser.

All else goes redis-py's way: a call with less time left, a large request, and the rest of a reply
that does not come at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import redis
from hiredis import pack_command
from redis._parsers.hiredis import NOT_ENOUGH_DATA, _HiredisParser

#: Bytes of a request up to which it goes this way.
SMALL: Final = 32 * 1024
#: What part of the timeout may have passed before a call that is given the whole of it.
SLACK: Final = 0.02
READ: Final = 64 * 1024


class Lean:
    """A connection's socket and parser.

    Args:
        connection: one of redis-py's, connected.
        seconds: how long each call may wait at most; from here on the socket's own timeout.
            ``None``: for ever.
        shared: whether others may close it meanwhile, as the pool does that it was taken of. Then
            it is never written to by its number, which may be another's by now.
    """

    def __init__(self, connection: Any, seconds: float | None, *, shared: bool = False) -> None:
        parser = connection._get_parser()
        self._reader = parser._reader
        self._socket = connection._sock
        # Written to without asking first whether that is possible: for a small request it is, and
        # what is left of one goes the usual way. A class of its own decides by itself.
        plain = type(self._socket) is socket.socket and not shared
        self._place = self._socket.fileno() if plain else None
        self._least = (seconds or 0) * (1 - SLACK)
        # All three, or redis-py would go back to what was left when the connection was made.
        self._socket.settimeout(seconds)
        connection.socket_timeout = parser._socket_timeout = seconds

    @classmethod
    def of(cls, connection: Any, seconds: float | None, *, shared: bool = False) -> Lean | None:
        """For that connection, or ``None`` where redis-py has another parser than that in C."""
        if isinstance(connection._get_parser(), _HiredisParser):
            return cls(connection, seconds, shared=shared)
        return None

    def fits(self, request: bytes, left: float) -> bool:
        """Whether so much may be sent this way with so many seconds left."""
        return left >= self._least and len(request) <= SMALL

    def exchange(self, request: bytes, replies: int, rest: Callable[[], Any]) -> list[Any]:
        """Send a request, and read so many replies; what the first read does not bring, ``rest``.

        Raises:
            redis.ConnectionError, redis.TimeoutError: as redis-py does.
        """
        try:
            self._send(request)
            found = self._socket.recv(READ)
        except TimeoutError:
            raise redis.TimeoutError("no reply within the deadline") from None
        except OSError as error:
            raise redis.ConnectionError(f"the connection failed: {error}") from None
        if not found:
            raise redis.ConnectionError("the server closed the connection")
        self._reader.feed(found)
        return [self._next(rest) for _ in range(replies)]

    @staticmethod
    def pack(commands: Sequence[tuple[Any, ...]]) -> bytes:
        """Commands of texts and bytes as they go over the wire."""
        return b"".join(map(pack_command, commands))

    def _send(self, request: bytes) -> None:
        sent = 0
        if self._place is not None:
            with suppress(BlockingIOError):
                sent = os.write(self._place, request)
        if sent < len(request):
            self._socket.sendall(request[sent:])

    def _next(self, rest: Callable[[], Any]) -> Any:
        reply = self._reader.gets()
        if reply is NOT_ENOUGH_DATA:
            return rest()
        if isinstance(reply, redis.ConnectionError):
            raise reply
        return reply
