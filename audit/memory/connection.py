"""Connections to a Redis or Valkey server: per process, judged, and each call under a deadline.

redis-py does the talking. What is ours: no connection crosses a fork, none is used again after
anything went wrong on it, and none is used at all before the server behind it was judged.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, DefaultParser
from redis.exceptions import ResponseError
from redis.retry import Retry

from audit.memory.lean import Lean
from audit.memory.server import config_value, judge_server, parse_info

#: Idle connections a process keeps; more are closed when they come back.
IDLE: Final = 64

Command = tuple[Any, ...]


class BoundedParser(DefaultParser):  # type: ignore[misc,valid-type]
    """redis-py's parser, whose every read from the socket has what is left of a deadline.

    By itself redis-py gives each read the whole timeout anew, so that a server which answers byte
    by byte, or each step of a handshake slowly, could take it many times over.
    """

    left: Callable[[], float] | None = None

    def read_from_socket(self, *args: Any, **options: Any) -> Any:
        if self.left is not None:
            options["timeout"] = self.left()
            if options["timeout"] <= 0:
                raise redis.TimeoutError("no reply within the deadline")
        return super().read_from_socket(*args, **options)


@dataclass(slots=True)
class Line:
    """One connection to a judged server that has the script.

    Attributes:
        lean: the shorter way to exchange, where there is one.
        named: the tenants this connection has told the server of, and when, in monotonic seconds.
    """

    connection: Any
    lean: Lean | None = None
    named: dict[str, float] = field(default_factory=dict)

    def exchange(self, commands: Sequence[Command], left: Callable[[], float]) -> list[Any]:
        """Send commands in one go and read their replies; the server's errors come as values.

        Raises:
            redis.RedisError: the connection failed, or the time is over.
        """
        connection = self.connection
        # Not pack_commands, which puts each part on its own for large values' sake: all are small.
        packed = [part for command in commands for part in connection.pack_command(*command)]
        request = b"".join(packed)
        connection._get_parser().left = left
        if self.lean is not None and self.lean.fits(request, left()):
            return self.lean.exchange(request, len(commands), lambda: self._read(left()))
        connection.send_packed_command([request], check_health=False)
        return [self._read(left()) for _ in commands]

    def _read(self, left: float) -> Any:
        if left <= 0:
            raise redis.TimeoutError("no reply within the deadline")
        try:
            return self.connection.read_response(timeout=left)
        except ResponseError as error:
            return error


class Lines:
    """The connections of this process.

    Args:
        url: as redis-py takes it.
        script: what every connection loads first.
        durability: one of :data:`audit.memory.server.DURABILITIES`.
        timeout: seconds any single step may take at most.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        script: str,
        durability: str,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._script = script
        self._durability = durability
        self._timeout = timeout
        self._clock = clock
        self._open()

    @property
    def client(self) -> redis.Redis:
        """A client for reading, with connections of its own."""
        self._after_fork()
        return self._client

    @property
    def place(self) -> str:
        """Which database of which server, however its URL is spelled."""
        to = self._pool.connection_kwargs
        where = to.get("path") or f"{to.get('host', 'localhost')}:{to.get('port', 6379)}"
        return f"{where}/{to.get('db', 0)}"

    def take(self, deadline: float) -> Line:
        """An idle connection, or a new one."""
        self._after_fork()
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect(deadline)

    def connect(self, deadline: float) -> Line:
        """A new connection, to a server that was judged just now."""
        self._after_fork()
        line = Line(self._pool.make_connection())
        left = deadline - self._clock()
        if left <= 0:
            raise redis.TimeoutError("the deadline passed before a connection was made")
        line.connection.socket_timeout = line.connection.socket_connect_timeout = left
        line.connection._get_parser().left = lambda: deadline - self._clock()
        try:
            line.connection.connect()
            self._judge(line, deadline)
            line.lean = Lean.of(line.connection, self._timeout)
        except BaseException:
            line.connection.disconnect()
            raise
        return line

    def give_back(self, line: Line) -> None:
        """Only a connection on which nothing is outstanding may come back."""
        if len(self._idle) < IDLE:
            self._idle.append(line)
        else:
            line.connection.disconnect()

    def drop_idle(self) -> None:
        """The server went away: what is idle is as stale as the connection that told us."""
        with suppress(IndexError):  # another thread may take the last one first
            while True:
                self._idle.pop().connection.disconnect()

    def close(self) -> None:
        self.drop_idle()
        self._pool.disconnect()

    # --- inside -------------------------------------------------------------------------------

    def _open(self) -> None:
        self._idle: deque[Line] = deque()
        self._pool = ConnectionPool.from_url(
            self._url,
            protocol=2,
            parser_class=BoundedParser,
            driver_info=None,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            retry=Retry(NoBackoff(), 0),
            # redis-py counts every connection ever made, those that are gone too.
            max_connections=2**31,
        )
        self._pool.make_connection()  # connects nothing, but refuses what no connection takes
        self._client = redis.Redis(connection_pool=self._pool)
        # Last: from here on another thread of this process uses all of the above.
        self._pid = os.getpid()

    def _after_fork(self) -> None:
        """Two processes on one connection would read each other's replies."""
        if self._pid != os.getpid():
            self._open()

    def _judge(self, line: Line, deadline: float) -> None:
        """Ask the server what it is before it gets a row: it may have been replaced."""
        info, fsync, loaded = line.exchange(
            [("INFO",), ("CONFIG", "GET", "appendfsync"), ("SCRIPT", "LOAD", self._script)],
            lambda: deadline - self._clock(),
        )
        if isinstance(info, ResponseError):
            raise info
        judge_server(parse_info(info), config_value(fsync), self._durability)
        if isinstance(loaded, ResponseError):
            raise loaded
