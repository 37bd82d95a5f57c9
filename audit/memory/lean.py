"""An exchange with a server in two system calls.

redis-py asks the system six times for what a request and its reply need: a timeout that Python
keeps means a poll before each call, and each new one a call of its own. An emit is little else. So
a plain socket is made to block, with the whole timeout kept by the system itself, and what is sent
and read by redis-py's own rules goes over it directly.

Only where that is the same: a whole timeout ahead, small commands, no TLS, nobody (gevent) who
made sockets something else, and redis-py's parser in C. All else goes redis-py's way, as does the
rest of a reply that does not come at once.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import redis
from redis._parsers.hiredis import NOT_ENOUGH_DATA, _HiredisParser

#: Bytes of a request up to which one call sends it whole.
SMALL: Final = 32 * 1024
#: What part of the timeout may have passed before a call that is given the whole of it.
SLACK: Final = 0.02
READ: Final = 64 * 1024


class Lean:
    """A connection's socket and parser, where they allow it.

    Args:
        connection: one of redis-py's, connected.
        seconds: how long each call may wait at most.
    """

    def __init__(self, connection: Any, seconds: float) -> None:
        self._reader = connection._get_parser()._reader
        self._socket = connection._sock
        self._least = seconds * (1 - SLACK)
        self._socket.settimeout(None)
        interval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)

    @classmethod
    def of(cls, connection: Any, seconds: float) -> Lean | None:
        """For that connection, or ``None`` where redis-py must do it."""
        own = type(connection._sock)
        plain = own is socket.socket and own.__module__ == "socket"
        if plain and isinstance(connection._get_parser(), _HiredisParser):
            return cls(connection, seconds)
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
            self._socket.sendall(request)
            found = self._socket.recv(READ)
        except (BlockingIOError, TimeoutError):
            raise redis.TimeoutError("no reply within the deadline") from None
        except OSError as error:
            raise redis.ConnectionError(f"the connection failed: {error}") from None
        if not found:
            raise redis.ConnectionError("the server closed the connection")
        self._reader.feed(found)
        return [self._next(rest) for _ in range(replies)]

    def _next(self, rest: Callable[[], Any]) -> Any:
        reply = self._reader.gets()
        if reply is NOT_ENOUGH_DATA:
            return rest()
        if isinstance(reply, redis.ConnectionError):
            raise reply
        return reply
