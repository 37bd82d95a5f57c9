"""An exchange with a server in a few system calls.

redis-py gives a socket a new timeout before each read and takes it back afterwards, a system call
each. An emit is little else. So where a whole timeout lies ahead, the socket keeps the one that it
has, and is written and read directly, by the rules of redis-py's parser.

All else goes redis-py's way: a call with less time left, a large request, and the rest of a reply
that does not come at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import redis
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
    """

    def __init__(self, connection: Any, seconds: float) -> None:
        parser = connection._get_parser()
        self._reader = parser._reader
        self._socket = connection._sock
        self._least = seconds * (1 - SLACK)
        # All three, or redis-py would go back to what was left when the connection was made.
        self._socket.settimeout(seconds)
        connection.socket_timeout = parser._socket_timeout = seconds

    @classmethod
    def of(cls, connection: Any, seconds: float) -> Lean | None:
        """For that connection, or ``None`` where redis-py has another parser than that in C."""
        if isinstance(connection._get_parser(), _HiredisParser):
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
        except TimeoutError:
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
