"""`audit copy` from and into a PostgreSQL in which another transaction stays open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from audit.cli import audit
from audit.errors import CopyError
from audit.memory import open_memory
from audit.testing import InMemory
from demo.postgres import PostgresServer
from tests.copying import copied, fill
from tests.sealing import raw
from tests.support import TENANT, make_identity, refused


@contextmanager
def open_transaction(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Somebody's, anywhere in the cluster: rows that are stored now are not settled."""
    with closing(psycopg.connect(postgres.url())) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection


def test_a_source_that_is_not_settled_is_not_copied(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were acknowledged are never left out in silence: exit 1, the tenant and why."""
    monkeypatch.setattr("audit.copying.settled.LOOKS", 2)
    target = f"sqlite:///{tmp_path}/target.db"
    with closing(open_memory(postgres_url)) as source:
        source.emit(refused(make_identity()))
        with open_transaction(postgres):
            source.emit(refused(make_identity()))
            obj: Any = SimpleNamespace(app=SimpleNamespace(conf={}), no_color=False)
            args = ["copy", "--from", postgres_url, "--to", target]
            did = CliRunner().invoke(audit, args, obj=obj)
    assert did.exit_code == 1, did.output
    assert f"NOT COPIED {TENANT}: rows at the source are not settled" in did.stdout


def test_a_source_is_waited_for(postgres: PostgresServer, postgres_url: str) -> None:
    """Once the other transaction ends, all rows are copied that were there at the beginning."""
    target = InMemory()
    with closing(open_memory(postgres_url)) as source:
        with open_transaction(postgres) as other:
            for _ in range(3):
                source.emit(refused(make_identity()))
            did = copied(source, target, pause=lambda seconds: other.rollback())
        assert (did[TENANT].fault, did[TENANT].rows) == (None, 3)
        assert raw(target) == raw(source)


def test_a_target_that_is_not_settled_is_left_as_it_is(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """A row of somebody else that does not show yet is found before anything is written."""
    source = InMemory()
    fill(source, 5)
    with closing(open_memory(postgres_url)) as target:
        alien = refused(make_identity())
        with open_transaction(postgres) as other:
            target.emit(alien)
            fault = copied(source, target)[TENANT].fault
            assert isinstance(fault, CopyError)
            assert "rows at the target are not settled" in str(fault)
            assert len(list(target.rows(TENANT))) == 1
            waited = copied(source, target, pause=lambda seconds: other.rollback())[TENANT].fault
        assert "the target's row 0 at " in str(waited)
        assert raw(target) == [alien.to_bytes()]


def test_a_row_behind_the_copied_ones_is_waited_for(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """A copy that adds nothing still says no where the target has one more that does not show."""
    source = InMemory()
    fill(source, 5)

    def told(tenant_id: str, rows: int, position: str) -> None:
        transaction.execute("SELECT pg_current_xact_id()")
        target.emit(refused(make_identity()))

    with (
        closing(open_memory(postgres_url)) as target,
        closing(psycopg.connect(postgres.url())) as transaction,
    ):
        assert copied(source, target)[TENANT].fault is None
        fault = copied(source, target, told=told)[TENANT].fault
    assert "rows at the target are not settled" in str(fault)
