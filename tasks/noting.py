"""What a worker's channel notes of a message, taken and done, in fewer steps than redis-py takes.

For each message kombu adds two entries to what is unacknowledged, and removes them again, each time
in a transaction: a quarter of what a task costs the worker's main process, most of it redis-py's
way through a pipeline. Here the same transaction is packed, sent and read in one go. Decision 26.

Only that: the four commands that kombu notes with, which do no harm when they are done twice.
Whatever else there is, an answer that is none of the expected, a connection that fails, goes or
goes once more redis-py's own way, with its retries and its errors.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import redis
from redis.client import Pipeline
from redis.connection import ConnectionPool
from redis.exceptions import RedisError

from audit.memory.lean import SMALL, Lean

_NOTES: Final = frozenset({"ZADD", "HSET", "ZREM", "HDEL"})
#: Connections that a pool must have at least: one of them is kept.
LEAST: Final = 3
_EXECUTE: Final = Pipeline.execute
_BEGIN, _END = ("MULTI",), ("EXEC",)


def note_quickly(client: Any) -> None:
    """Let a channel's client make such pipelines; one that is no plain redis-py's is left alone."""
    pool = client.connection_pool
    plain = type(client) is redis.Redis and type(pool) is ConnectionPool
    # Where somebody watches pipelines (OpenTelemetry's instrumentor does), all are to be seen.
    watched = hasattr(_EXECUTE, "__wrapped__") or Pipeline.execute is not _EXECUTE
    if not plain or watched or pool.max_connections < LEAST:
        return
    notes = _Notes(pool)

    def pipeline(transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return _Noting(notes, client, transaction, shard_hint)

    client.pipeline = pipeline


class _Noting(Pipeline):
    def __init__(self, notes: _Notes, client: Any, transaction: bool, shard_hint: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._notes = notes

    def execute(self, raise_on_error: bool = True) -> Any:
        told = self._notes.told(self.command_stack) if self._notes_alone() else None
        if told is None:
            return super().execute(raise_on_error)
        self.command_stack = []
        return told

    def _notes_alone(self) -> bool:
        stack = self.command_stack
        if self.watching or self.explicit_transaction or self.scripts or self.connection:
            return False
        # By its name: for the class, "transaction" is a method of a client.
        return bool(stack) and vars(self)["transaction"] and all(a[0] in _NOTES for a, _ in stack)


class _Notes:
    """The connection of a pool that is kept for such transactions, used by one at a time.

    Whoever finds it in use takes another one of the pool's, and gives that back.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._idle: deque[tuple[Any, Lean]] = deque()
        self._pid = os.getpid()

    def told(self, stack: Sequence[Any]) -> list[Any] | None:
        """What the server answered to a transaction of these; ``None``: ask it redis-py's way."""
        if self._pid != os.getpid():
            return None
        request = Lean.pack([_BEGIN, *(args for args, _ in stack), _END])
        if len(request) > SMALL:
            return None
        taken = self._take()
        if taken is None:
            return None
        connection, lean = taken
        try:
            *queued, told = lean.exchange(request, len(stack) + 2, connection.read_response)
        except redis.TimeoutError:
            self._drop(connection)
            raise  # as redis-py would: whoever waited once does not wait twice
        except RedisError:
            self._drop(connection)
            return None
        except BaseException:
            self._drop(connection)
            raise
        if queued != [b"OK", *[b"QUEUED"] * len(stack)] or not _went_well(told, len(stack)):
            self._drop(connection)
            return None
        self._give_back(taken)
        return list(told)

    def _take(self) -> tuple[Any, Lean] | None:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        connection = self._pool.get_connection()
        lean = Lean.of(connection, connection.socket_timeout, shared=True)
        if lean is None:
            self._pool.release(connection)
            return None
        return connection, lean

    def _give_back(self, taken: tuple[Any, Lean]) -> None:
        if self._idle:
            self._pool.release(taken[0])
        else:
            self._idle.append(taken)

    def _drop(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)


def _went_well(told: Any, count: int) -> bool:
    # A list exactly: what a server tells by itself in between is one of another kind.
    return type(told) is list and len(told) == count and not any(map(_is_error, told))


def _is_error(one: object) -> bool:
    return isinstance(one, Exception)
