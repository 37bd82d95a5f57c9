"""A history that the bench loads in bulk is what emitting its rows one by one would have left."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest

from audit.memory import AuditMemory, migrate_memory, open_memory
from audit.row import AuditRow, Reason
from bench.bulk import load_postgres, load_sqlite
from bench.past import Past
from demo.postgres import PostgresServer
from tests.support import check_every_row, completed, make_ending, make_identity, refused, started

#: What stands in each table, in an order that is the same for both.
QUERIES = {
    "audit_rows": "SELECT * FROM audit_rows ORDER BY turn",
    "audit_invocations": "SELECT * FROM audit_invocations ORDER BY request_id",
    "audit_deaths": "SELECT * FROM audit_deaths ORDER BY message",
    "audit_tokens": "SELECT * FROM audit_tokens",
    "audit_ticks": "SELECT * FROM audit_ticks",
    "audit_logs": "SELECT * FROM audit_logs",
}


def few() -> Iterator[AuditRow]:
    """The beginning of a history, and what it has too rarely to have it here."""
    yield from islice(Past(1_000_000), 400)
    for reason in (Reason.WORKER_LOST, Reason.ABANDONED, Reason.RAISED):
        identity = make_identity(skill_id="tabs\tand\\slashes\n", task_id=None, caller_persona="\0")
        yield started(identity)
        yield completed(identity, make_ending(reason, "a\tb\\c\nd\r\u20ac"))
    yield refused(make_identity())
    yield started(make_identity())


def lines(tables: Iterable[tuple[str, list[dict[str, Any]]]]) -> dict[str, list[dict[str, Any]]]:
    """The tables, with the places of rows counted from the first."""
    found = dict(tables)
    turns = {line["turn"]: at for at, line in enumerate(found["audit_rows"])}
    minors = {line["turn"]: line["minor"] for line in found["audit_rows"]}
    for line in found["audit_invocations"]:
        assert line["minor"] == minors[line["turn"]]
    for name in ("audit_rows", "audit_invocations"):
        for line in found[name]:
            line["turn"] = turns[line["turn"]]
            del line["minor"]
    return found


def emit_all(url: str, rows: Iterable[AuditRow]) -> None:
    with closing(open_memory(url, timeout=30)) as memory:
        for row in rows:
            memory.emit(row)


def assert_goes_on(memory: AuditMemory) -> None:
    memory.emit(started(late := make_identity()))
    memory.emit(completed(late))
    (row, *_) = memory.running()
    same = {name: row.payload[name] for name in ("request_id", "tenant_id", "trace_id")}
    memory.emit(completed(make_identity(**same)))
    rows = check_every_row(memory)
    assert rows[-1].request_id == row.request_id


@pytest.fixture
def rows() -> list[AuditRow]:
    return list(few())


def test_in_sqlite(tmp_path: Path, rows: list[AuditRow]) -> None:
    """Line by line and column by column, and the indexes are there again."""
    found = []
    for name in ("bulk", "emitted"):
        url = f"sqlite:///{tmp_path}/{name}.db"
        if name == "bulk":
            load_sqlite(url, rows)
        else:
            emit_all(url, rows)
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.row_factory = sqlite3.Row
            tables = {
                table: [dict(line) for line in connection.execute(query)]
                for table, query in QUERIES.items()
            }
            schema = connection.execute(
                "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%'"
            )
            found.append((lines(tables.items()), sorted(map(tuple, schema), key=str)))
    assert found[0] == found[1]
    assert len(found[0][0]["audit_rows"]) == 408
    with closing(open_memory(f"sqlite:///{tmp_path}/bulk.db", timeout=30)) as memory:
        assert_goes_on(memory)


def test_in_postgres(postgres: PostgresServer, rows: list[AuditRow]) -> None:
    """The same."""
    found = []
    for name in ("bulk", "emitted"):
        url = postgres.url(schema=f"audit_{name}")
        migrate_memory(url)
        if name == "bulk":
            load_postgres(url, postgres.url(), "audit_bulk", rows)
        else:
            emit_all(url, rows)
        with psycopg.connect(postgres.url(), row_factory=psycopg.rows.dict_row) as connection:
            connection.execute(f"SET search_path = audit_{name}".encode())
            tables = {
                table: connection.execute(query.encode()).fetchall()
                for table, query in QUERIES.items()
            }
            indexes = connection.execute(
                "SELECT indexname, replace(indexdef, current_schema() || '.', '')"
                " FROM pg_indexes WHERE schemaname = current_schema() ORDER BY 1"
            ).fetchall()
            found.append((lines(tables.items()), indexes))
    assert found[0] == found[1]
    with closing(open_memory(postgres.url(schema="audit_bulk"), timeout=30)) as memory:
        assert_goes_on(memory)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        for name in ("bulk", "emitted"):
            connection.execute(f"DROP SCHEMA audit_{name} CASCADE".encode())
