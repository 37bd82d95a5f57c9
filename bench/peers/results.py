"""Where a peer's results are: counted, and removed after each batch."""

from __future__ import annotations

from typing import Protocol

import psycopg
from psycopg import errors

from bench.peers.peer import Peer, Sql
from bench.place import Place
from bench.server import client


class Results(Protocol):
    """The results of one peer."""

    def done(self) -> int:
        """How many are stored."""

    def forget(self) -> None:
        """Remove all."""


class RedisResults:
    """A database of a Redis server that holds nothing else."""

    def __init__(self, url: str) -> None:
        self._server = client(url)

    def done(self) -> int:
        return int(self._server.dbsize())

    def forget(self) -> None:
        self._server.flushdb()


class SqlResults:
    """A table in PostgreSQL, over one connection: a new one for each look would disturb."""

    def __init__(self, url: str, sql: Sql) -> None:
        self._sql = sql
        self._connection = psycopg.connect(url, autocommit=True)

    def done(self) -> int:
        try:
            found = self._connection.execute(self._sql.done.encode()).fetchone()
        except errors.UndefinedTable:  # Celery makes it with the first result
            return 0
        return int(found[0]) if found else 0

    def forget(self) -> None:
        self._connection.execute(self._sql.forget.encode())

    def release(self) -> None:
        """Let the workers have the tasks, which are in the same database."""
        self._connection.execute(self._sql.release.encode())


def results_of(peer: Peer, place: Place) -> Results:
    """The results of a peer that is Celery."""
    if peer.sql is None:
        return RedisResults(place.results)
    return SqlResults(place.results, peer.sql)
