"""Connections to a Redis or Valkey server: per process, judged, and each call under a deadline.

redis-py does the talking. What is ours: no connection crosses a fork, none is used again after
anything went wrong on it, and none gets a row before the server behind it was judged. Of several
servers, ``redis_nodes.py`` says which one a connection goes to.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, DefaultParser
from redis.exceptions import AskError, ClusterDownError, ResponseError, TryAgainError
from redis.retry import Retry

from audit.errors import MemoryUnsuitableError
from audit.memory.lean import Lean
from audit.memory.redis_url import Address
from audit.memory.server import config_value, judge_server, parse_info

#: Idle connections a process keeps; more are closed when they come back.
IDLE: Final = 64
#: Pauses in seconds before a server is asked again.
PAUSES: Final = (0.02, 0.1)
#: Errors after which asking again may find a server that answers.
AGAIN: Final = (
    *(redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, OSError),
    *(AskError, TryAgainError, ClusterDownError),
)

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
    """One connection to a server: one that was judged and has the script, unless it is plain.

    Attributes:
        home: where it was made, and goes back to.
        judged: whether the server was judged, and has the script.
        lean: the shorter way to exchange, where there is one.
        named: the tenants this connection has told the server of, and when, in monotonic seconds.
    """

    connection: Any
    home: Lines
    judged: bool = False
    lean: Lean | None = None
    named: dict[str, float] = field(default_factory=dict)

    def exchange(self, commands: Sequence[Command], left: Callable[[], float]) -> list[Any]:
        """Send commands in one go and read their replies; the server's errors come as values.

        Raises:
            redis.RedisError: the connection failed, or the time is over.
        """
        connection, lean = self.connection, self.lean
        connection._get_parser().left = left
        if lean is not None:
            request = lean.pack(commands)
            if lean.fits(request, left()):
                return lean.exchange(request, len(commands), lambda: self._read(left()))
        else:
            # Not pack_commands, which puts each part on its own for large values' sake.
            packed = [part for command in commands for part in connection.pack_command(*command)]
            request = b"".join(packed)
        connection.send_packed_command([request], check_health=False)
        return [self._read(left()) for _ in commands]

    def _read(self, left: float) -> Any:
        if left <= 0:
            raise redis.TimeoutError("no reply within the deadline")
        try:
            return self.connection.read_response(timeout=left)
        except ResponseError as error:
            return error


class Nodes(Protocol):
    """Connections to the servers of a memory, however many there are; see :class:`Lines`."""

    one_node: bool

    @property
    def place(self) -> str: ...
    def take(self, deadline: float, key: str = "", at: Address | None = None) -> Line: ...
    def take_plain(self, deadline: float, key: str = "", at: Address | None = None) -> Line: ...
    def check(self, deadline: float) -> None: ...
    def give_back(self, line: Line) -> None: ...
    def broken(self, line: Line) -> None: ...
    def drop_idle(self) -> None: ...
    def close(self) -> None: ...
    def node_of(self, key: str, deadline: float) -> Address | None: ...
    def turn(self, error: Exception) -> Address | None: ...
    def pauses(self) -> Iterator[float]: ...


class Lines:
    """The connections of this process to one server.

    Args:
        url: as redis-py takes it.
        script: what every connection loads first.
        durability: one of :data:`audit.memory.server.DURABILITIES`.
        timeout: seconds any single step may take at most.
        clock: monotonic seconds.
        replicas: how many must acknowledge every row.
        only_master: whether a replica gets no connection that is judged.
    """

    #: Whether every key is served by the same node.
    one_node = True

    def __init__(
        self,
        url: str,
        *,
        script: str,
        durability: str,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        replicas: int = 0,
        only_master: bool = False,
    ) -> None:
        self._url = url
        self._script = script
        self._durability = durability
        self._timeout = timeout
        self._clock = clock
        self._replicas = replicas
        self._only_master = only_master
        self._open()

    @property
    def place(self) -> str:
        """Which database of which server, however its URL is spelled."""
        to = self._pool.connection_kwargs
        where = to.get("path") or f"{to.get('host', 'localhost')}:{to.get('port', 6379)}"
        return f"{where}/{to.get('db', 0)}"

    def take(self, deadline: float, key: str = "", at: Address | None = None) -> Line:
        """An idle connection to the server of ``key``, or a new one."""
        self._after_fork()
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect(deadline)

    def take_plain(self, deadline: float, key: str = "", at: Address | None = None) -> Line:
        """The same, to a server that nobody has judged: for what stores no row."""
        self._after_fork()
        try:
            return self._plain.pop()
        except IndexError:
            return self.connect(deadline, judged=False)

    def idle(self, *, judged: bool = True) -> Line | None:
        """An idle connection, if there is one."""
        self._after_fork()
        with suppress(IndexError):
            return (self._idle if judged else self._plain).pop()
        return None

    def connect(self, deadline: float, *, judged: bool = True) -> Line:
        """A new connection, to a server that was judged just now."""
        self._after_fork()
        line = Line(self._pool.make_connection(), self)
        left = deadline - self._clock()
        if left <= 0:
            raise redis.TimeoutError("the deadline passed before a connection was made")
        line.connection.socket_timeout = line.connection.socket_connect_timeout = left
        line.connection._get_parser().left = lambda: deadline - self._clock()
        try:
            line.connection.connect()
            if judged:
                self._judge(line, deadline)
            line.lean = Lean.of(line.connection, self._timeout)
        except BaseException:
            line.connection.disconnect()
            raise
        return line

    def check(self, deadline: float) -> None:
        """Judge every server there is."""
        self.give_back(self.connect(deadline))

    def give_back(self, line: Line) -> None:
        """Only a connection on which nothing is outstanding may come back."""
        idle = self._idle if line.judged else self._plain
        if len(idle) < IDLE:
            idle.append(line)
        else:
            line.connection.disconnect()

    def broken(self, line: Line) -> None:
        """Something went wrong on this connection."""
        line.connection.disconnect()

    def drop_idle(self) -> None:
        """The server went away: what is idle is as stale as the connection that told us."""
        for idle in (self._idle, self._plain):
            with suppress(IndexError):  # another thread may take the last one first
                while True:
                    idle.pop().connection.disconnect()

    def close(self) -> None:
        self.drop_idle()
        self._pool.disconnect()

    # --- when something went wrong ------------------------------------------------------------

    def node_of(self, key: str, deadline: float) -> Address | None:
        """Which node serves ``key``; ``None`` where there is one alone."""
        return None

    def turn(self, error: Exception) -> Address | None:
        """Learn from an error of :data:`AGAIN`; the place to ask next, where the error says so.

        Raises:
            MemoryUnsuitableError: asking again is no use.
        """
        if isinstance(error, AskError):
            raise MemoryUnsuitableError(
                "the memory server is one of several of a cluster: write redis+cluster:// in the"
                " place of redis://"
            )
        self.drop_idle()
        return None

    def pauses(self) -> Iterator[float]:
        """Seconds to wait before each further try; no further try behind the last."""
        return iter(PAUSES)

    # --- inside -------------------------------------------------------------------------------

    def _open(self) -> None:
        self._idle: deque[Line] = deque()
        self._plain: deque[Line] = deque()
        self._pool = self._pool_of(self._url)
        # Last: from here on another thread of this process uses all of the above.
        self._pid = os.getpid()

    def _pool_of(self, url: str) -> Any:
        pool = ConnectionPool.from_url(
            url,
            protocol=2,
            parser_class=BoundedParser,
            driver_info=None,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            retry=Retry(NoBackoff(), 0),
            # redis-py counts every connection ever made, those that are gone too.
            max_connections=2**31,
        )
        pool.make_connection()  # connects nothing, but refuses what no connection takes
        return pool

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
        told = parse_info(info)
        if self._only_master and told.get("role") != "master":
            raise redis.ReadOnlyError("the server is no master any more, or not yet")
        judge_server(told, config_value(fsync), self._durability, self._replicas)
        if isinstance(loaded, ResponseError):
            raise loaded
        line.judged = True
