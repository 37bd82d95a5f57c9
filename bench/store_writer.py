"""A writer to one store in two ways: ``python -m bench.store_writer KIND URL``.

It answers each order ``{"way": W, "count": N, "pace": P}`` with ``"ready"``, begins when told to
go, and answers with what each call took. ``memory`` emits through the audit's memory at URL;
``bare`` is the least call of the same store that stores the same bytes: one append by a script, one
INSERT. ``pace`` is a number of calls a second, 0 as fast as they go.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, Final

import psycopg
import redis

from audit.memory import open_memory
from audit.row import AuditRow
from bench.writer import APPEND, WARM_UP, rows

Call = Callable[[Any], object]
#: Tenant and bytes of a row: what is bare need not make them.
Bare = tuple[str, bytes]

#: Beside the memory's tables, with a key of its own.
POSTGRES_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS bare"
    " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text, row bytea)"
)
SQLITE_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, tenant TEXT, row BLOB)"
)
INSERT: Final = "INSERT INTO bare (tenant, row) VALUES "


def bare_redis(url: str) -> Call:
    append = redis.Redis.from_url(url.partition("?")[0]).register_script(APPEND)
    return lambda bare: append(keys=[f"bare:{{{bare[0]}}}"], args=[bare[1]])


def bare_postgres(url: str) -> Call:
    connection = psycopg.connect(url, autocommit=True)
    return lambda bare: connection.execute(f"{INSERT}(%s, %s)", bare)


def bare_sqlite(url: str) -> Call:
    path = f"{url.removeprefix('sqlite:///')}-bare"
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")

    def insert(bare: Bare) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"{INSERT}(?, ?)", bare)
        connection.execute("COMMIT")

    return insert


def make_bare(kind: str, url: str) -> None:
    """What the bare calls need, before anybody makes one."""
    if kind == "postgres":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(POSTGRES_TABLE)
    elif kind == "sqlite":
        with closing(sqlite3.connect(f"{url.removeprefix('sqlite:///')}-bare")) as made:
            made.execute("PRAGMA journal_mode = WAL")
            made.execute(SQLITE_TABLE)


BARE: Final[dict[str, Callable[[str], Call]]] = {
    "redis": bare_redis,
    "postgres": bare_postgres,
    "sqlite": bare_sqlite,
}


def some(endless: Iterator[AuditRow], way: str, count: int) -> list[Any]:
    """Rows as a way takes them."""
    found = list(islice(endless, count))
    return [(row.tenant_id, row.to_bytes()) for row in found] if way == "bare" else found


def measure(call: Call, prepared: list[Any], pace: float) -> list[float]:
    """The seconds of each call. Paced ones begin at moments of their own, not all at once."""
    took, clock = [], time.perf_counter
    due = clock() + (random.random() / pace if pace else 0)
    for one in prepared:
        if pace:
            time.sleep(max(0.0, due - clock()))
            due += 1 / pace
        began = clock()
        call(one)
        took.append(clock() - began)
    return took


def answers(calls: dict[str, Call], orders: Iterator[str]) -> Iterator[Any]:
    endless = rows()
    for way, call in calls.items():
        measure(call, some(endless, way, WARM_UP), 0)
    yield "warm"
    for line in orders:
        order = json.loads(line)
        prepared = some(endless, order["way"], order["count"])
        yield "ready"
        next(orders)
        yield measure(calls[order["way"]], prepared, order["pace"])


def main(kind: str, url: str) -> None:
    calls = {"memory": open_memory(url, timeout=30).emit, "bare": BARE[kind](url)}
    for answer in answers(calls, iter(sys.stdin.readline, "")):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
