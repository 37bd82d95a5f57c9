"""PostgreSQL with a partition for each month: the same promises over the turn of a month."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import errors

from audit.cli import audit
from audit.errors import MemoryUnsuitableError, RowRefusedError
from audit.memory import AuditMemory, migrate_memory, open_memory
from audit.memory.base import Once, RowFilter, Stored
from audit.memory.sql.postgres import _DIALECT, PostgresMemory
from audit.row import Reason
from demo.postgres import PostgresServer
from tests.support import (
    TENANT,
    checked_memory,
    completed,
    make_ending,
    make_identity,
    started,
)

_NUMBERS = count(1)
LAST_OF_NOVEMBER = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC)
JANUARY = datetime(2027, 1, 31, 12, tzinfo=UTC)
PARTS = ["audit_rows_2026_11", "audit_rows_2026_12", "audit_rows_2027_01"]


class Monthly:
    """A memory with partitions, and its clock."""

    def __init__(self, server: PostgresServer) -> None:
        self.schema = f"monthly_{next(_NUMBERS)}"
        self.url = server.url(schema=self.schema)
        self.made = migrate_memory(self.url, monthly=True)
        self.admin = psycopg.connect(server.url(), autocommit=True)
        self.admin.execute(f"SET search_path = {self.schema}, pg_temp")

    def set_clock(self, moment: datetime) -> None:
        """To a moment from which it goes on a microsecond with each look."""
        self.admin.execute("DROP SEQUENCE IF EXISTS looks")
        self.admin.execute("CREATE SEQUENCE looks MINVALUE 0 START 0")
        self.admin.execute(
            "CREATE OR REPLACE FUNCTION audit_now() RETURNS bigint LANGUAGE sql VOLATILE"
            f" SECURITY DEFINER AS $$ SELECT {round(moment.timestamp() * 1_000_000)}"
            f" + nextval('{self.schema}.looks') $$"
        )

    def parts(self) -> list[str]:
        found = self.admin.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'audit_rows'::regclass ORDER BY 1"
        )
        return [name for (name,) in found]


@pytest.fixture
def monthly(postgres: PostgresServer) -> Iterator[Monthly]:
    made = Monthly(postgres)
    yield made
    made.admin.execute(f"DROP SCHEMA {made.schema} CASCADE")
    made.admin.close()


@pytest.fixture
def memory(monthly: Monthly) -> Iterator[AuditMemory]:
    with checked_memory(monthly.url) as made:
        yield made


def test_an_invocation_closes_once_over_the_turn_of_a_month(
    monthly: Monthly, memory: AuditMemory
) -> None:
    """It starts once and ends once whenever that is; what comes behind it is told apart as ever."""
    identity, other = make_identity(), make_identity()
    start, end = started(identity), completed(identity)
    once = Once(token="message", seconds=10**9)
    monthly.set_clock(LAST_OF_NOVEMBER)
    assert memory.emit(start, once) is Stored.NEW
    monthly.set_clock(DECEMBER)
    assert memory.emit(start, once) is Stored.REPEATED
    with pytest.raises(RowRefusedError):
        memory.emit(started(identity, ts=end.ts.replace("2", "1", 1)))
    assert memory.emit(started(other), once) is Stored.REPLAYED
    assert memory.emit(end) is Stored.NEW
    monthly.set_clock(JANUARY)
    assert memory.emit(end) is Stored.REPEATED
    assert memory.emit(completed(identity, make_ending(Reason.ABANDONED))) is Stored.SETTLED
    late = completed(identity, make_ending(Reason.RAISED))
    assert memory.emit(late) is memory.emit(late) is Stored.LATE
    assert monthly.parts() == PARTS
    counted = monthly.admin.execute(
        "SELECT tableoid::regclass::text, count(*) FROM audit_rows GROUP BY 1 ORDER BY 1"
    )
    assert counted.fetchall() == list(zip(PARTS, (1, 2, 1), strict=True))


def test_what_is_read_has_one_order_over_all_months(monthly: Monthly, memory: AuditMemory) -> None:
    """Rows, pages, entries, positions and what runs: the oldest first, or the newest."""
    emitted = []
    for moment in (LAST_OF_NOVEMBER, DECEMBER, JANUARY):
        monthly.set_clock(moment)
        for _ in range(2):
            identity = make_identity()
            emitted += [started(identity), completed(identity)]
            memory.emit(emitted[-2])
            memory.emit(emitted[-1])
        emitted.append(started(make_identity()))
        memory.emit(emitted[-1])
    stored = [row.to_bytes() for row in emitted]
    assert [row.to_bytes() for row in memory.rows()] == stored
    entries = memory.entries(TENANT, None, 100)
    assert [entry.stored for entry in entries] == stored
    assert memory.entries(TENANT, entries[4].position, 3) == entries[5:8]
    assert memory.last_position(TENANT) == entries[-1].position
    page = memory.page(RowFilter(), most=9)
    assert [row.to_bytes() for row in page.rows] == stored[:-10:-1]
    rest = memory.page(RowFilter(), cursor=page.next)
    assert [row.to_bytes() for row in rest.rows] == stored[:-9][::-1]
    assert [row.to_bytes() for row in memory.running()] == stored[4::5]
    wanted = emitted[5].request_id
    assert [row.request_id for row in memory.rows(request_id=wanted)] == [wanted] * 2
    before = memory.cursor_at(DECEMBER - timedelta(microseconds=1))
    assert memory.page(RowFilter(), cursor=before).rows[0].to_bytes() == stored[4]


def test_many_that_turn_the_month_together_make_one_place(
    monthly: Monthly, memory: AuditMemory
) -> None:
    """None fails, though nobody made it before, or waits for a backup that reads for hours."""
    monthly.set_clock(LAST_OF_NOVEMBER)
    memory.emit(started(make_identity()))
    with (
        psycopg.connect(monthly.admin.info.dsn) as backup,
        ThreadPoolExecutor(8) as pool,
    ):
        backup.execute(f"TABLE {monthly.schema}.audit_rows")
        monthly.set_clock(DECEMBER)
        lines = [open_memory(monthly.url, timeout=10) for _ in range(8)]
        for line in lines:
            line.check()
        words = list(pool.map(lambda line: line.emit(started(make_identity())), lines))
        for line in lines:
            line.close()
    assert words == [Stored.NEW] * 8
    assert monthly.parts() == PARTS[:2]


def test_the_next_month_is_there_a_week_ahead(monthly: Monthly, memory: AuditMemory) -> None:
    """Whoever renews a lease makes it: no emit has to."""
    monthly.set_clock(datetime(2026, 11, 20, tzinfo=UTC))
    memory.hold_lease("worker-1", 5)
    assert monthly.parts() == PARTS[:1]
    monthly.set_clock(datetime(2026, 11, 25, tzinfo=UTC))
    memory.hold_lease("worker-1", 5)
    assert monthly.parts() == PARTS[:2]


def test_a_bound_writer_makes_it_too(monthly: Monthly, guarded_roles: None) -> None:
    """So that it is there where no host serves all tenants."""
    migrate_memory(monthly.url, row_security=True, writer="contract_host", tenant=TENANT)
    memory = open_memory(monthly.url.replace("postgres@", "contract_host@"), timeout=10)
    monthly.set_clock(datetime(2026, 11, 25, tzinfo=UTC))
    memory.hold_lease("worker-1", 5)
    assert monthly.parts() == [PARTS[1]]
    memory.close()


def test_a_month_goes_when_trimming_has_emptied_it(monthly: Monthly, memory: AuditMemory) -> None:
    """Not before, and never this month's; what was in it still counts as having been."""
    old, new = make_identity(), make_identity()
    monthly.set_clock(LAST_OF_NOVEMBER)
    for row in (started(old), completed(old)):
        memory.emit(row)
    monthly.set_clock(DECEMBER)
    for row in (started(new), completed(new)):
        memory.emit(row)
    last = memory.last_position(TENANT)
    assert migrate_memory(monthly.url) == []
    boundary = memory.entries(TENANT, None, 10)[2].position
    assert memory.trim(TENANT, boundary) == 2
    with psycopg.connect(monthly.admin.info.dsn) as reading:
        reading.execute(f"TABLE {monthly.schema}.audit_rows")
        assert migrate_memory(monthly.url) == []
    [told] = migrate_memory(monthly.url)
    assert "audit_rows_2026_11" in told
    assert monthly.parts() == PARTS[1:2]
    assert memory.last_position(TENANT) == last
    assert memory.emit(completed(old, make_ending(Reason.ABANDONED))) is Stored.SETTLED
    assert memory.trim(TENANT, f"{2**63}-0") == 2
    assert migrate_memory(monthly.url) == []
    assert memory.last_position(TENANT) == last
    assert memory.page(RowFilter()).trimmed


def test_no_row_of_a_part_can_be_changed_or_read_past_the_whole(
    monthly: Monthly, memory: AuditMemory
) -> None:
    """The triggers stand at each part, and nobody has a right there but the owner."""
    monthly.set_clock(DECEMBER)
    memory.emit(started(make_identity()))
    part = PARTS[1]
    for statement in ("UPDATE {} SET stored = 'x'", "DELETE FROM {}", "TRUNCATE {}"):
        with pytest.raises(errors.RaiseException, match="append-only"):
            monthly.admin.execute(statement.format(part).encode())
    monthly.admin.execute("CREATE ROLE monthly_reader")
    monthly.admin.execute("CREATE ROLE monthly_writer")
    migrate_memory(monthly.url, reader="monthly_reader", writer="monthly_writer")
    # As where a database gives rights on all new tables by default.
    monthly.admin.execute(f"GRANT SELECT ON {part} TO monthly_writer")
    for role, refused in (("monthly_reader", True), ("monthly_writer", False)):
        monthly.admin.execute(f"SET ROLE {role}")
        assert monthly.admin.execute("SELECT count(*) FROM audit_rows").fetchone() == (1,)
        if refused:
            with pytest.raises(errors.InsufficientPrivilege):
                monthly.admin.execute(f"TABLE {part}".encode())
        else:
            assert monthly.admin.execute(f"TABLE {part}".encode()).fetchall() == []
        with pytest.raises(errors.InsufficientPrivilege):
            monthly.admin.execute("SELECT audit_add_month('audit_rows_x', '2030-01-01')")
        monthly.admin.execute("RESET ROLE")
    monthly.admin.execute("DROP OWNED BY monthly_reader, monthly_writer")
    monthly.admin.execute("DROP ROLE monthly_reader, monthly_writer")


#: 15,000 ended invocations of ten tenants, and 10 that run, over eight months.
FILL = """
INSERT INTO audit_rows SELECT n, m, 't' || n % 10, 'r' || n, 0, m, 'k', 's', NULL, 'p',
  'trace' || n, NULL, 'x'
  FROM generate_series(1, 15000) n, LATERAL (SELECT 1795000000000000 + n * 1400000000::bigint m) t;
INSERT INTO audit_invocations (tenant_id, request_id, state, turn, minor)
  SELECT tenant_id, request_id, CASE turn % 1500 WHEN 0 THEN 'o' ELSE 'c' END::"char", turn, minor
  FROM audit_rows;
ANALYZE audit_rows, audit_invocations;
"""


def test_what_is_asked_often_is_found_by_indexes(
    monthly: Monthly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs, an invocation's rows, a tenant's newest: no month is read whole for it."""
    for month in range(9):
        monthly.admin.execute(
            "SELECT audit_month(%s)", ((1_795_000_000 + month * 2_600_000) * 10**6,)
        )
    monthly.admin.execute(FILL.encode())
    plans: list[str] = []

    def explained(memory: PostgresMemory, query: Any) -> list[Any]:
        compiled = query.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True})
        found = monthly.admin.execute(f"EXPLAIN {compiled}".encode())
        plans.append("\n".join(line for (line,) in found))
        return []

    monkeypatch.setattr(PostgresMemory, "_ask", explained)
    memory = open_memory(monthly.url)
    assert list(memory.running("t0")) == list(memory.rows(request_id="r77")) == []
    assert list(memory.page(RowFilter(tenant_id="t3")).rows) == []
    running, of_one, page, *_ = plans
    assert "audit_invocations_open" in running
    assert "Seq Scan" not in "".join(plans), plans
    assert re.search(r"Index Cond: .*request_id = 'r77'", of_one), of_one
    assert re.search(r"Index Cond: .*tenant_id = 't3'", page), page
    assert "Merge Append" in page
    assert "Sort  (" not in page


def test_tables_without_partitions_stay_so(postgres_url: str) -> None:
    """The command says what can be done instead; and makes them where nothing is yet."""

    def ran(url: str) -> tuple[int, str]:
        command = ["--memory", url, "migrate", "--partitions", "monthly"]
        done = CliRunner().invoke(audit, command, obj=SimpleNamespace())
        return done.exit_code, done.output

    code, told = ran(postgres_url)
    assert (code, "name another schema" in told) == (1, True), told
    with pytest.raises(MemoryUnsuitableError, match="without partitions"):
        migrate_memory(postgres_url, monthly=True)
    new = postgres_url + "_parted"
    assert "a partition for each month" in ran(new)[1]
    assert ran(new) == (0, "up to date\n")
    with psycopg.connect(postgres_url.rpartition("&schema=")[0], autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA {new.rpartition('schema=')[2]} CASCADE")
