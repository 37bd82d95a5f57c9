"""audit/ledger/retention.py: what leaves the memory is in the bundles, and nothing else leaves."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from audit.embedded import EmbeddedServer
from audit.errors import LedgerDamagedError
from audit.ledger.archive import Archive, read_through
from audit.ledger.claims import Trust
from audit.ledger.folder import LedgerFolder
from audit.ledger.retention import HotRetention
from audit.ledger.sources import Sources
from audit.ledger.tiles import Tile
from audit.ledger.verifier import verify
from audit.memory import AuditMemory
from audit.memory.base import RowFilter
from audit.testing import FakeClock, InMemory
from tests.sealing import KEYS, OTHER, PREFIX, log_of, seal
from tests.support import TENANT, checked_memory, completed, make_identity, started, wait_until

OLD: Final = "2026-01-01T00:00:00.000000Z"
NEW: Final = "2026-01-02T00:00:00.000000Z"
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


def write(memory: AuditMemory, pairs: int, ts: str, tenant_id: str = TENANT) -> None:
    for _ in range(pairs):
        identity = make_identity(tenant_id=tenant_id)
        memory.emit(started(identity, ts=ts))
        memory.emit(completed(identity, ts=ts))


def hot(memory: AuditMemory, root: Path, **options: Any) -> HotRetention:
    """Keeps what is younger than an hour, at 13:00 of the first day."""
    now = datetime(2026, 1, 1, 13, tzinfo=UTC)
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
    assert hot(memory, tmp_path).trim() == 1460
    assert stored(memory) == before[1400:]
    assert len(stored(memory, OTHER)) == 2
    assert read(memory, tmp_path) == before
    assert hot(memory, tmp_path).trim() == 0


def test_a_row_that_is_not_sealed_stays(tmp_path: Path) -> None:
    """However old, as long as no checkpoint covers it; then it goes, and sealing goes on."""
    memory = InMemory()
    assert hot(memory, tmp_path).trim() == 0
    write(memory, 10, OLD)
    write(memory, 1, "2026-01-01T11:00:00.000000Z")
    assert hot(memory, tmp_path).trim() == 0
    seal(memory, tmp_path)
    write(memory, 3, OLD)
    write(memory, 1, NEW)
    before = stored(memory)
    assert hot(memory, tmp_path).trim() == 20
    assert hot(memory, tmp_path).trim() == 0
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim() == 8
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
    assert hot(memory, tmp_path).trim() == 0
    write(memory, 1, "2026-01-01T01:00:00.000001Z")
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim() == 10
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
    assert hot(memory, tmp_path).trim() == gone


def test_rows_of_an_open_invocation_stay(tmp_path: Path) -> None:
    """Its started row, and what was stored behind it, until it is closed."""
    memory = InMemory()
    write(memory, 5, OLD)
    identity = make_identity()
    memory.emit(started(identity, ts=OLD))
    write(memory, 700, OLD)
    write(memory, 1, NEW)
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim() == 10
    assert [row.request_id for row in memory.running()] == [identity.request_id]
    memory.emit(completed(identity, ts=OLD))
    seal(memory, tmp_path)
    assert hot(memory, tmp_path).trim() == 1401


def test_a_row_that_is_not_in_its_bundle_stays(tmp_path: Path) -> None:
    """A missing bundle keeps its rows in the memory, their last copy, and is an alarm."""
    memory = InMemory()
    write(memory, 300, OLD)
    write(memory, 1, NEW)
    seal(memory, tmp_path)
    log = LedgerFolder(tmp_path).log(log_of(TENANT))
    (log.root / Tile(None, 1).to_path()).unlink()
    for _ in range(2):
        with pytest.raises(LedgerDamagedError, match="missing"):
            hot(memory, tmp_path).trim()
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
    with pytest.raises(LedgerDamagedError, match="not what was sealed"):
        hot(memory, tmp_path).trim()
    assert len(stored(memory)) == 602


def test_a_real_server_is_trimmed_alike(tmp_path: Path) -> None:
    """Positions of a server, which are no numbers of rows."""
    with EmbeddedServer() as server, checked_memory(server.url) as memory:
        write(memory, 400, OLD)
        write(memory, 1, NEW)
        seal(memory, tmp_path)
        before = stored(memory)
        assert hot(memory, tmp_path).trim() == 800
        assert stored(memory) == before[800:]
        assert read(memory, tmp_path) == before


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
