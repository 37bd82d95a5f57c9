"""A history into the tables of a SQL memory, in bulk: the lines that emits would have left there.

The tables are the memory's own, made by it. Their indexes are taken off meanwhile, those of keys
excepted, and made again from the database's own words. What is guaranteed, and tested: column for
column it is what emitting the same rows one by one leaves, but for the moments of storing, which
are the rows' own here.

Only what :mod:`bench.past` has: nothing late, no replay, no tick.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from audit.memory import migrate_memory, open_memory
from audit.memory.sql.emitted import Emitted
from audit.row import AuditRow

#: Rows in one go.
BATCH: Final = 20_000
_SLOTS: Final = {"started": 0, "completed": 1, "settled": 1, "refused": 2}
_ROWS: Final = (
    "turn, minor, tenant_id, request_id, slot, moment, kind, skill_id, outcome, caller_persona,"
    " trace_id, task_id, stored"
)
_INVOCATIONS: Final = "tenant_id, request_id, state, turn, minor, first, last"
#: What the text form of COPY writes otherwise.
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

Line = tuple[Any, ...]


@dataclass(slots=True)
class Lines:
    """What rows come to in the tables, in the order in which they are given.

    Attributes:
        open: invocations that have begun: key to what their line has so far.
        deaths: of each tenant's messages.
    """

    turn: int = 0
    open: dict[tuple[str, str], Line] = field(default_factory=dict)
    deaths: Counter[tuple[str, str]] = field(default_factory=Counter)

    def take(self, rows: Iterable[AuditRow]) -> tuple[list[Line], list[Line]]:
        """The lines of ``audit_rows`` and of ``audit_invocations`` that are final now."""
        stored: list[Line] = []
        ended: list[Line] = []
        for row in rows:
            emitted = Emitted.of(row, None, None)
            self.turn += 1
            moment = emitted.columns[0]
            place, slot = (self.turn, moment), _SLOTS[emitted.action]
            key = (emitted.tenant_id, emitted.request_id)
            stored.append((*place, *key, slot, *emitted.columns, emitted.stored))
            digest = hashlib.sha256(emitted.stored).digest()
            if slot == 0:
                self.open[key] = (*place, digest)
            elif slot == 1:
                ended.append((*key, "c", *self.open.pop(key), digest))
            else:
                ended.append((*key, "r", *place, digest, None))
            if emitted.dead is not None:
                self.deaths[emitted.tenant_id, emitted.dead] += 1
        return stored, ended

    def still_open(self) -> list[Line]:
        return [(*key, "o", *begun, None) for key, begun in self.open.items()]


def _batches(rows: Iterable[AuditRow], lines: Lines) -> Iterator[tuple[list[Line], list[Line]]]:
    source = iter(rows)
    while batch := list(islice(source, BATCH)):
        yield lines.take(batch)
    yield [], lines.still_open()


# --- SQLite ---------------------------------------------------------------------------------------


def load_sqlite(url: str, rows: Iterable[AuditRow]) -> None:
    """Into the file of a memory without a row."""
    memory = open_memory(url)
    memory.check()
    memory.close()
    path = Path(url.removeprefix("sqlite:///"))
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        connection.execute("BEGIN IMMEDIATE")
        indexes = connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
            " AND tbl_name IN ('audit_rows', 'audit_invocations')"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        lines = Lines()
        for stored, ended in _batches(rows, lines):
            _insert(connection, "audit_rows", _ROWS, stored)
            _insert(connection, "audit_invocations", _INVOCATIONS, ended)
        deaths = [(*key, count) for key, count in lines.deaths.items()]
        _insert(connection, "audit_deaths", "tenant_id, message, deaths", deaths)
        for _, statement in indexes:
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("ANALYZE")
    connection.close()


def _insert(
    connection: sqlite3.Connection, table: str, columns: str, lines: Sequence[Line]
) -> None:
    marks = ", ".join("?" * (columns.count(",") + 1))
    connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", lines)  # noqa: S608


# --- PostgreSQL -----------------------------------------------------------------------------------


def load_postgres(url: str, conninfo: str, schema: str, rows: Iterable[AuditRow]) -> None:
    """Into the schema of a memory without a row; ``conninfo`` is its owner's."""
    with psycopg.connect(conninfo) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        indexes = connection.execute(
            "SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i"
            " WHERE i.indrelid IN ('audit_rows'::regclass, 'audit_invocations'::regclass)"
            " AND NOT i.indisunique"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}".encode())
        lines = Lines()
        for stored, ended in _batches(rows, lines):
            _copy(connection, "audit_rows", _ROWS, stored)
            _copy(connection, "audit_invocations", _INVOCATIONS, ended)
        deaths = [(*key, count) for key, count in lines.deaths.items()]
        _copy(connection, "audit_deaths", "tenant_id, message, deaths", deaths)
        for _, statement in indexes:
            connection.execute(statement.encode())
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        connection.execute("VACUUM ANALYZE audit_rows")
        connection.execute("VACUUM ANALYZE audit_invocations")
    migrate_memory(url)  # new rows come behind these, whose turns are none of this cluster


def _copy(
    connection: psycopg.Connection[Any], table: str, columns: str, lines: Sequence[Line]
) -> None:
    if not lines:
        return
    text = "".join(["\t".join(map(_cell, line)) + "\n" for line in lines])
    with connection.cursor().copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
        copy.write(text)


def _cell(value: Any) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, bytes):
        return f"\\\\x{value.hex()}"
    return str(value).translate(_ESCAPES)
