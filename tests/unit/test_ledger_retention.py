"""audit/ledger/retention.py: what leaves the memory is in the bundles, and nothing else leaves."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from audit.embedded import EmbeddedServer
from audit.errors import LedgerDamagedError, MemoryUnavailableError
from audit.ledger.archive import Archive, read_through
from audit.ledger.claims import Trust
from audit.ledger.folder import LedgerFolder
from audit.ledger.retention import PAGE, HotRetention, Trimmed
from audit.ledger.sources import Sources
from audit.ledger.tiles import Tile
from audit.ledger.verifier import verify
from audit.memory import AuditMemory
from audit.memory.base import Entry, RowFilter
from audit.testing import FakeClock, InMemory
from tests.sealing import KEYS, OTHER, PREFIX, log_of, raw, raw_memory, seal
from tests.support import TENANT, checked_memory, completed, make_identity, started, wait_until

OLD: Final = "2026-01-01T00:00:00.000000Z"
NEW: Final = "2026-01-02T00:00:00.000000Z"
LATER: Final = "2026-01-02T13:00:00.000000Z"


def write(memory: AuditMemory, pairs: int, ts: str, tenant_id: str = TENANT) -> None:
    for _ in range(pairs):
        identity = make_identity(tenant_id=tenant_id)
        memory.emit(started(identity, ts=ts))
        memory.emit(completed(identity, ts=ts))


def hot(memory: AuditMemory, root: Path, **options: Any) -> HotRetention:
    """Keeps what is younger than an hour, at 13:00 of the first day."""
    now = datetime(2026, 1, options.pop("day", 1), 13, tzinfo=UTC)
    return HotRetention(memory, LedgerFolder(root), seconds=3600, now=lambda: now, **options)


def stored(memory: AuditMemory, tenant_id: str = TENANT) -> list[bytes]:
    return [row.to_bytes() for row in memory.rows(tenant_id)]


def read(memory: AuditMemory, root: Path, tenant_id: str = TENANT) -> list[bytes]:
    archive, wanted = Archive(LedgerFolder(root)), RowFilter(tenant_id=tenant_id)
    return [row.to_bytes() for row in read_through(memory, archive, wanted)]


def test_old_sealed_rows_leave_the_memory(tmp_path: Path) -> None:
    """Of every tenant, up to the first young one; whoever reads notices nothing."""
    memory = InMemory()
    write(memory, 700, OLD)
    write(memory, 30, OLD, OTHER)
    write(memory, 1, NEW, OTHER)
    write(memory, 20, NEW)
    write(memory, 5, OLD)
    seal(memory, tmp_path)
    before = stored(memory)
    assert hot(memory, tmp_path).trim().rows == 1460
    assert stored(memory) == before[1400:]
    assert len(stored(memory, OTHER)) == 2
    assert read(memory, tmp_path) == before
    assert hot(memory, tmp_path).trim().rows == 0


def test_a_row_that_is_not_sealed_stays(tmp_path: Path) -> None:
    """However old, as long as no checkpoint covers it; then it goes, and sealing goes on."""
    memory = InMemory()
    assert hot(memory, tmp_path).trim().rows == 0
    write(memory, 10, OLD)
    write(memory, 1, "2026-01-01T11:00:00.000000Z")
    assert hot(memory, tmp_path).trim().rows == 0
    seal(memory, tmp_path)
    write(memory, 3, OLD)
    write(memory, 1, NEW)
    before = stored(memory)
    assert hot(memory, tmp_path).trim().rows == 20
    assert hot(memory, tmp_path).trim().rows == 0
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim().rows == 8
    assert not seal(memory, tmp_path).faults
    write(memory, 1, NEW)
    assert not seal(memory, tmp_path).faults
    assert read(memory, tmp_path)[:-2] == before


def test_age_counts_from_the_newest_sealed_rows(tmp_path: Path) -> None:
    """A tenant that is quiet keeps the last hour before its newest row, whatever the clock says."""
    memory = InMemory()
    write(memory, 5, OLD)
    write(memory, 5, "2026-01-01T00:59:59.999999Z")
    write(memory, 5, "2026-01-01T01:00:00.000000Z")
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim().rows == 0
    write(memory, 1, "2026-01-01T01:00:00.000001Z")
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim().rows == 10
    keys = Trust(KEYS.verifiers, PREFIX)
    report = verify(Sources(trust=keys, ledger=tmp_path, memory=memory))
    assert [log.findings for log in report.logs] == [(), ()]


@pytest.mark.parametrize(
    ("ts", "gone"),
    [("2026-01-01T11:59:59.999999Z", 20), ("2026-01-01T12:00:00.000000Z", 10)],
)
def test_the_limit_is_exact(tmp_path: Path, ts: str, gone: int) -> None:
    """A row as old as the limit stays, one a microsecond older goes."""
    memory = InMemory()
    write(memory, 5, OLD)
    write(memory, 5, ts)
    write(memory, 1, NEW)
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim().rows == gone


def test_rows_of_an_open_invocation_stay(tmp_path: Path) -> None:
    """Its started row, and what was stored behind it, until it is closed."""
    memory = InMemory()
    write(memory, 5, OLD)
    identity = make_identity()
    memory.emit(started(identity, ts=OLD))
    write(memory, 700, OLD)
    write(memory, 1, NEW)
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim().rows == 10
    assert [row.request_id for row in memory.running()] == [identity.request_id]
    memory.emit(completed(identity, ts=OLD))
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim().rows == 1401


def test_a_row_that_is_not_in_its_bundle_stays(tmp_path: Path) -> None:
    """A missing bundle keeps its rows in the memory, their last copy, and is an alarm."""
    memory = InMemory()
    write(memory, 300, OLD)
    write(memory, 1, NEW)
    seal(memory, tmp_path)
    log = LedgerFolder(tmp_path).log(log_of(TENANT))
    (log.root / Tile(None, 1).to_path()).unlink()
    for _ in range(2):
        (fault,) = hot(memory, tmp_path).trim().faults.values()
        assert isinstance(fault, LedgerDamagedError)
        assert "missing" in str(fault)
    assert len(stored(memory)) >= 346


def test_a_changed_row_stays_and_is_an_alarm(tmp_path: Path) -> None:
    """Where memory and bundle differ nothing is trimmed, so that both can be looked at."""
    memory = InMemory()
    write(memory, 300, OLD)
    write(memory, 1, NEW)
    seal(memory, tmp_path)
    log = LedgerFolder(tmp_path).log(log_of(TENANT))
    path = log.root / Tile(None, 0).to_path()
    path.write_bytes(path.read_bytes().replace(b"triage", b"triaGe", 1))
    (fault,) = hot(memory, tmp_path).trim().faults.values()
    assert isinstance(fault, LedgerDamagedError)
    assert "not what was sealed" in str(fault)
    assert len(stored(memory)) == 602


def test_a_real_server_is_trimmed_alike(tmp_path: Path) -> None:
    """Positions of a server, which are no numbers of rows."""
    with EmbeddedServer() as server, checked_memory(server.url) as memory:
        write(memory, 400, OLD)
        write(memory, 1, NEW)
        seal(memory, tmp_path)
        before = stored(memory)
        assert hot(memory, tmp_path).trim().rows == 800
        assert stored(memory) == before[800:]
        assert read(memory, tmp_path) == before


#: Entries that say no time, or not in the words of a row.
STRANGE: Final = {
    "no JSON": b"\xff no row",
    "no object": b"[1]",
    "no time": b'{"kind":"a.b","meta":{},"payload":{},"schema":1,"ts":"soon"}',
    "no zone": b'{"kind":"a.b","meta":{},"payload":{},"schema":1,"ts":"2026-01-01T00:00:00"}',
    "a number": b'{"kind":"a.b","meta":{},"payload":{},"schema":1,"ts":1}',
    "the year 1": b'{"kind":"a.b","meta":{},"payload":{},"schema":1,"ts":"0001-01-01T00:00:00Z"}',
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_sealed_entry_that_is_no_row_goes_with_the_next_row(tmp_path: Path, what: str) -> None:
    """It blocks nothing, stays as long as the row behind it, and is in the bundles afterwards."""
    with raw_memory() as (memory, put):
        put(STRANGE[what])
        write(memory, 5, OLD)
        put(STRANGE[what])
        write(memory, 2, NEW)
        put(STRANGE[what])
        seal(memory, tmp_path)
        before = raw(memory)
        went = hot(memory, tmp_path).trim()
        assert (went.faults, went.rows) == ({}, 12 if what == "the year 1" else 11)
        assert raw(memory) == before[went.rows :]
        archived = Archive(LedgerFolder(tmp_path)).stored(TENANT)
        assert [stored for _, stored in archived] == before
        write(memory, 1, LATER)
        seal(memory, tmp_path)
        assert hot(memory, tmp_path, day=2).trim().rows == 5


def test_more_strange_entries_than_a_page_or_a_bundle_block_nothing(tmp_path: Path) -> None:
    """Neither between rows nor as the newest: the age counts from the newest that says one."""
    with raw_memory() as (memory, put):
        write(memory, 5, OLD)
        for number in range(PAGE * 2 + 7):
            put(b"no row %d" % number)
        write(memory, 5, OLD)
        write(memory, 1, NEW)
        for number in range(600):
            put(b"no row either %d" % number)
        seal(memory, tmp_path)
        before = raw(memory)
        went = hot(memory, tmp_path).trim()
        assert (went.faults, went.rows) == ({}, PAGE * 2 + 27)
        assert raw(memory) == before[went.rows :]


def test_where_only_the_year_1_is_said_nothing_goes(tmp_path: Path) -> None:
    """A time before which there is none ends nobody, and is no fault."""
    with raw_memory() as (memory, put):
        write(memory, 1, "0001-01-01T00:00:00.000000Z")
        for number in range(300):
            put(b"no row %d" % number)
        seal(memory, tmp_path)
        assert hot(memory, tmp_path).trim() == Trimmed(rows=0, faults={})
        assert len(raw(memory)) == 302


def test_what_is_not_sealed_is_not_trimmed_with_its_neighbours(tmp_path: Path) -> None:
    """A foreign entry is never sealed: it stays, and so does what stands behind it."""
    with raw_memory() as (memory, put):
        write(memory, 5, OLD)
        put(b"x", field="foreign")
        write(memory, 5, OLD)
        write(memory, 1, NEW)
        assert seal(memory, tmp_path).faults
        before = raw(memory)
        assert hot(memory, tmp_path).trim().rows == 0  # as old as the newest sealed row
        write(memory, 5, OLD, OTHER)
        put(b"no row", tenant_id=OTHER)
        write(memory, 1, NEW, OTHER)
        seal(memory, tmp_path)
        assert hot(memory, tmp_path).trim() == Trimmed(rows=10, faults={})
        assert raw(memory) == before


def test_a_fault_of_one_tenant_keeps_no_other(tmp_path: Path) -> None:
    """Whichever comes first: the damaged one stays whole, with its error, and the others go."""
    for damaged, whole in ((TENANT, OTHER), (OTHER, TENANT)):
        memory, root = InMemory(), tmp_path / damaged
        for tenant_id in (TENANT, OTHER):
            write(memory, 300, OLD, tenant_id)
            write(memory, 1, NEW, tenant_id)
        seal(memory, root)
        damage(root, damaged)
        went = hot(memory, root).trim()
        assert went.rows == 600
        assert list(went.faults) == [damaged]
        assert (len(stored(memory, damaged)), len(stored(memory, whole))) == (602, 2)


def test_faults_are_told_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Damage of two tenants is two alarms, once; the third tenant is served each time."""
    memory, third = InMemory(), OTHER[:-1] + "3"
    for tenant_id in (TENANT, OTHER, third):
        write(memory, 300, OLD, tenant_id)
        write(memory, 1, NEW, tenant_id)
    seal(memory, tmp_path)
    damage(tmp_path, TENANT)
    damage(tmp_path, OTHER)
    keeper = hot(memory, tmp_path)
    for _ in range(3):
        keeper._watch()
    assert len(stored(memory, third)) == 2
    told = [r for r in caplog.records if "severity" in r.__dict__]
    assert [(r.levelno, r.__dict__["severity"]) for r in told] == [(logging.CRITICAL, "sev-1")] * 2
    assert sorted(t for r in told for t in (TENANT, OTHER) if t in r.getMessage()) == sorted(
        (TENANT, OTHER)
    )


def test_an_outage_is_of_no_tenant(tmp_path: Path) -> None:
    """A memory that does not answer ends the look; one that does has a fault at one tenant."""
    memory = Unreadable(TENANT)
    for tenant_id in (TENANT, OTHER):
        write(memory, 5, OLD, tenant_id)
        write(memory, 1, NEW, tenant_id)
    seal(memory, tmp_path)
    memory.unreadable = True
    went = hot(memory, tmp_path).trim()
    assert (went.rows, list(went.faults)) == (10, [TENANT])
    tenants = memory.tenants()
    memory.tenants = lambda: tenants  # type: ignore[method-assign]
    memory.down = True  # just now
    with pytest.raises(MemoryUnavailableError):
        hot(memory, tmp_path).trim()


class Unreadable(InMemory):
    """A memory whose key of one tenant is of another type."""

    def __init__(self, tenant_id: str) -> None:
        super().__init__()
        self._tenant_id = tenant_id
        self.unreadable = False

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        if self.unreadable and tenant_id == self._tenant_id:
            raise MemoryUnavailableError("WRONGTYPE")
        return super().entries(tenant_id, after, limit)


def damage(root: Path, tenant_id: str) -> None:
    path = LedgerFolder(root).log(log_of(tenant_id)).root / Tile(None, 0).to_path()
    path.write_bytes(path.read_bytes().replace(b"triage", b"triaGe", 1))


def test_in_the_background_every_fault_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage and damage, by what they mean; the work is begun again, and never twice at once."""
    memory, clock = InMemory(), FakeClock()
    write(memory, 300, OLD)
    write(memory, 1, NEW)
    seal(memory, tmp_path)
    keeper = hot(memory, tmp_path, every=10, clock=clock)
    log = LedgerFolder(tmp_path).log(log_of(TENANT))
    path = log.root / Tile(None, 0).to_path()
    whole = path.read_bytes()

    def again() -> None:
        assert keeper.poke() is True
        assert keeper.poke() is False
        clock.pass_by(11)

    path.write_bytes(whole.replace(b"triage", b"triaGe", 1))
    again()
    wait_until(lambda: any("severity" in r.__dict__ for r in caplog.records))
    wait_until(lambda: keeper.poke())
    wait_until(lambda: "hot retention" not in {t.name for t in threading.enumerate()})
    clock.pass_by(11)
    (tmp_path / "whole").write_bytes(whole)
    (tmp_path / "whole").rename(path)  # at once, for somebody may be reading
    wait_until(lambda: keeper.poke())
    wait_until(lambda: len(stored(memory)) == 2)
    # The leases of other tests may tell of their memories meanwhile, without a severity.
    records = [r for r in caplog.records if "severity" in r.__dict__]
    told = [(r.levelno, r.__dict__["severity"]) for r in records]
    assert told == [(logging.CRITICAL, "sev-1")]
