"""The plans of the queries: asked of the database itself, so that no index is there for nothing.

A few thousand rows and the database's own statistics. What must not be is a plan that walks through
the table, or sorts what an index could have given in order.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from audit.memory import AuditMemory, migrate_memory, open_memory
from audit.memory.base import RowFilter
from audit.memory.sql.memory import SqlMemory
from bench.bulk import load_postgres, load_sqlite
from bench.past import END, WEEKS, Past, tenant_of
from demo.postgres import PostgresServer

ROWS = 6_000
PAST = Past(ROWS)
Ask = Callable[[AuditMemory], Any]
WEEK = {"since": END - timedelta(weeks=WEEKS // 2), "until": END - timedelta(weeks=3)}


def page(**parts: Any) -> Ask:
    return lambda memory: memory.page(RowFilter(**parts))


def rows(**parts: Any) -> Ask:
    return lambda memory: list(memory.rows(**parts))


def met() -> dict[str, str]:
    one = PAST.met[len(PAST.met) // 2]
    return {"request_id": one.request_id, "trace_id": one.trace_id, "tenant_id": one.tenant_id}


#: Each query, and the indexes of which one must answer it: SQLite names the one of a key by number.
REQUEST = {"audit_rows_request_id_tenant_id_slot_key", "sqlite_autoindex_audit_rows_1"}
OPEN = {"audit_invocations_open"}
TRACE = {"audit_rows_of_trace"}
TENANT = {"audit_rows_of_tenant"}
OUTCOME = {"audit_rows_of_outcome"}
EXPECTED: dict[str, tuple[Callable[[], Ask], set[str]]] = {
    "running": (lambda: lambda memory: list(memory.running()), OPEN),
    "running of one": (lambda: lambda memory: list(memory.running(tenant_of(0))), OPEN),
    "open page": (lambda: lambda memory: memory.open_page(tenant_of(0), 10), OPEN),
    "request": (lambda: rows(request_id=met()["request_id"]), REQUEST),
    "request of one": (
        lambda: rows(tenant_id=met()["tenant_id"], request_id=met()["request_id"]),
        REQUEST,
    ),
    "trace": (lambda: rows(trace_id=met()["trace_id"]), TRACE),
    "trace of one": (
        lambda: rows(tenant_id=met()["tenant_id"], trace_id=met()["trace_id"]),
        TRACE,
    ),
    "page of a trace": (lambda: page(trace_id=met()["trace_id"]), TRACE),
    "a week by outcome": (lambda: page(tenant_id=tenant_of(3), outcome="panic", **WEEK), OUTCOME),
    "rows of a week by outcome": (
        lambda: rows(tenant_id=tenant_of(3), outcome="panic", **WEEK),
        OUTCOME,
    ),
    "a small tenant's page": (lambda: page(tenant_id=tenant_of(7), skill_id="x", **WEEK), TENANT),
    "a small tenant's rows": (lambda: rows(tenant_id=tenant_of(7), skill_id="x", **WEEK), TENANT),
}


#: Every row of a table, in the words of either database; the last is one by way of its key.
WALKS = re.compile(
    r"Seq Scan on audit_(rows|invocations)"
    r"|SCAN audit_(rows|invocations)(?! USING INDEX audit_invocations_open)"
    r"|audit_rows_pkey on audit_rows[^\n]*\n(\s*Index Cond[^\n]*\n)?\s*Filter"
)
#: What SQLite does where an index does not give the rows in their order.
SORTS = "TEMP B-TREE"
#: Where it must: their lists may be long.
IN_ORDER = (TRACE, TENANT, OUTCOME)
Explain = Callable[[Any], list[str]]


def plans(memory: SqlMemory, explain: Explain, ask: Ask) -> list[str]:
    """The plans of all that is asked, a line each."""
    lines: list[str] = []
    real = memory._reading._ask

    def explained(query: Any) -> Any:
        lines.extend(explain(query))
        return real(query)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory._reading, "_ask", explained)
        ask(memory)
    return lines


@pytest.fixture(scope="module")
def in_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqlMemory, Explain]]:
    path = tmp_path_factory.mktemp("plans") / "audit.db"
    load_sqlite(f"sqlite:///{path}", PAST)
    memory = open_memory(f"sqlite:///{path}", timeout=30)
    assert isinstance(memory, SqlMemory)
    dialect = SQLiteDialect_pysqlite(paramstyle="named")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:

        def explain(query: Any) -> list[str]:
            compiled = query.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
            plan = connection.execute(f"EXPLAIN QUERY PLAN {compiled}", compiled.params)
            return [line[3] for line in plan]

        yield memory, explain
    memory.close()


@pytest.fixture(scope="module")
def in_postgres(postgres: PostgresServer) -> Iterator[tuple[SqlMemory, Explain]]:
    """Each query is explained with its values; without them it may walk through no table either."""
    url = postgres.url(schema="audit_plans")
    migrate_memory(url)
    load_postgres(url, postgres.url(), "audit_plans", PAST)
    memory = open_memory(url, timeout=30)
    assert isinstance(memory, SqlMemory)
    dialect: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("SET search_path = audit_plans")

        def explain(query: Any) -> list[str]:
            compiled = query.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
            text, numbers = str(compiled), count(1)
            general = re.sub(r"%\(\w+\)s", lambda _: f"${next(numbers)}", text)
            before_values = f"EXPLAIN (GENERIC_PLAN) {general}".encode()
            for line in connection.execute(before_values, prepare=False):
                assert "Seq Scan on audit_rows" not in line[0], text
                assert "Seq Scan on audit_invocations" not in line[0], text
            found = connection.execute(f"EXPLAIN {text}".encode(), compiled.params)
            return [line[0] for line in found]

        yield memory, explain
        connection.execute("DROP SCHEMA audit_plans CASCADE")
    memory.close()


@pytest.mark.parametrize("what", EXPECTED)
@pytest.mark.parametrize("database", ["in_sqlite", "in_postgres"])
def test_an_index_answers(database: str, what: str, request: pytest.FixtureRequest) -> None:
    """The one that is there for it; no table is walked through, no long list sorted."""
    memory, explain = request.getfixturevalue(database)
    ask, indexes = EXPECTED[what]
    lines = plans(memory, explain, ask())
    shown = "\n".join(lines)
    assert any(index in line for line in lines for index in indexes), shown
    assert not WALKS.search(shown), shown
    if indexes in IN_ORDER:
        assert SORTS not in shown, shown
