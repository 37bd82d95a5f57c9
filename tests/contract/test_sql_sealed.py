"""A ledger over a memory in a SQL database: sealed, trimmed, and what is changed is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psycopg
import pytest

from audit.ledger.finding import Kind, Report, Verdict
from audit.memory import AuditMemory, open_memory
from demo.postgres import PostgresServer
from tests.ledger_writer import just_now, rows_of
from tests.sealing import NEIGHBOUR, check, seal
from tests.support import TENANT


@dataclass(frozen=True)
class Host:
    """A memory, and one who may do everything to its tables."""

    memory: AuditMemory
    ledger: Path
    tamper: Callable[[str], None]

    def emit(self, tenant_id: str, count: int, seed: int) -> None:
        for row in just_now(rows_of(tenant_id, count, Random(seed))):
            self.memory.emit(row)

    def check(self) -> Report:
        return check(self.memory, self.ledger)


@pytest.fixture(params=["postgres", "sqlite"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    url = request.getfixturevalue(f"{request.param}_url")
    memory = open_memory(url, timeout=10)

    def in_postgres(statement: str) -> None:
        server: PostgresServer = request.getfixturevalue("postgres")
        schema = url.rpartition("schema=")[2]
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"SET search_path = {schema}")
            connection.execute("ALTER TABLE audit_rows DISABLE TRIGGER ALL")
            connection.execute(statement)

    def in_sqlite(statement: str) -> None:
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            for name in ("update", "delete"):
                connection.execute(f"DROP TRIGGER audit_append_only_{name}")
            connection.execute(statement)
        connection.close()

    tamper = in_postgres if request.param == "postgres" else in_sqlite
    made = Host(memory, tmp_path / "ledger", tamper)
    made.emit(TENANT, 30, 1)
    made.emit(NEIGHBOUR, 20, 2)
    seal(memory, made.ledger)
    made.emit(TENANT, 10, 3)
    seal(memory, made.ledger)
    yield made
    memory.close()


def test_what_is_sealed_is_right(host: Host) -> None:
    """Before a trim and after it, with rows that wait and without."""
    assert host.check().verdict is Verdict.RIGHT
    rows = list(host.memory.rows(TENANT))
    host.memory.trim(TENANT, str(rows[20].position))
    host.emit(TENANT, 4, 4)
    report = host.check()
    assert report.verdict is Verdict.RIGHT
    assert {log.tenant: log.unsealed for log in report.logs if log.tenant in (TENANT,)} == {
        TENANT: 4
    }
    seal(host.memory, host.ledger)
    assert host.check().verdict is Verdict.RIGHT


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE audit_rows SET stored = {edited} WHERE turn = {turn}", Kind.EDITED),
        ("DELETE FROM audit_rows WHERE turn = {turn}", Kind.DELETED),
        ("DELETE FROM audit_rows WHERE turn >= {turn}", None),
        ("UPDATE audit_logs SET sealed = NULL", None),
    ],
)
def test_whoever_changes_the_tables_is_found(host: Host, statement: str, kind: Kind | None) -> None:
    """By somebody who may do everything there, with the triggers off."""
    row = list(host.memory.rows(TENANT))[7]
    edited = row.to_bytes().replace(b'"attempt":0', b'"attempt":1')
    assert edited != row.to_bytes()
    literal = f"'\\x{edited.hex()}'" if "ostgres" in host.memory.name else f"x'{edited.hex()}'"
    turn = str(row.position).partition("-")[0]
    host.tamper(statement.format(edited=literal, turn=turn))
    report = host.check()
    assert report.verdict is Verdict.WRONG
    if kind is not None:
        found = [finding for finding in report.findings() if finding.kind is kind]
        assert found
        assert {finding.tenant for finding in found} == {TENANT}
