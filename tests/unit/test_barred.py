"""An ending seen from outside of which the memory has no start: told, for no row can be kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.recorder import Kept, Recorder
from audit.row import AuditRow, Reason
from audit.spool import Spool
from audit.testing import InMemory
from tests.support import completed, make_ending, make_identity, started


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path, "memory")


def told(caplog: pytest.LogCaptureFixture) -> list[bytes]:
    return [r.audit_row.encode() for r in caplog.records if hasattr(r, "audit_row")]


def at_once(row: AuditRow, spool: Spool) -> None:
    assert Recorder(InMemory(), spool).settle(row) is Kept.SETTLED


def from_the_spool(row: AuditRow, spool: Spool) -> None:
    spool.keep(row)
    assert spool.replay(InMemory()).emitted == 1
    assert spool.empty


@pytest.mark.parametrize("report", [at_once, from_the_spool])
def test_the_log_record_holds_the_row(
    report: Callable[[AuditRow, Spool], None], spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its start was lost, or it never started: whoever reports it cannot tell."""
    row = completed(make_identity(), make_ending(Reason.WORKER_LOST))
    report(row, spool)
    assert told(caplog) == [row.to_bytes()]


@pytest.mark.parametrize("report", [at_once, from_the_spool])
def test_what_was_not_dispatched_is_as_it_should_be(
    report: Callable[[AuditRow, Spool], None], spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    """That it has no started row is what the ending says."""
    report(completed(make_identity(), make_ending(Reason.NOT_DISPATCHED)), spool)
    assert told(caplog) == []


def test_an_ending_that_closes_says_nothing(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    """Nor does a second one."""
    memory, identity = InMemory(), make_identity()
    memory.emit(started(identity))
    for reason, kept in ((Reason.WORKER_LOST, Kept.MEMORY), (Reason.ABANDONED, Kept.SETTLED)):
        assert Recorder(memory, spool).settle(completed(identity, make_ending(reason))) is kept
    assert told(caplog) == []
