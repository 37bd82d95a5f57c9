"""One tenant's keys are damaged: keeper, reconciler, counter, spool, recorder and pages go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.board.standing import ProofState, proof_of
from audit.breaker import Breaker
from audit.doctor.check import Level, Probe, examine
from audit.doctor.store import leases
from audit.errors import MemoryDamagedError
from audit.keeper import Keeper
from audit.memory.base import Entry, Stored
from audit.reconciler import Reconciler
from audit.recorder import Kept, Recorder
from audit.row import AuditRow, Reason
from audit.spool import Spool
from audit.tail import Tail
from audit.testing import FakeClock, InMemory
from tests.support import TENANT, completed, make_identity, started

OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
LEASE = 15.0


class Damaged(InMemory):
    """A memory in which the keys of one tenant are damaged, from some moment on."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.damaged = False

    def _insist(self, tenant_id: str | None) -> None:
        if self.damaged and tenant_id in (None, TENANT):
            raise MemoryDamagedError(f"damaged: {TENANT}", tenant_id=TENANT)

    def emit(self, row: AuditRow, *more: Any) -> Stored:
        self._insist(row.tenant_id)
        return super().emit(row, *more)

    def running(self, tenant_id: str | None = None) -> Iterator[AuditRow]:
        self._insist(tenant_id)
        return super().running(tenant_id)

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        self._insist(tenant_id)
        return super().entries(tenant_id, after, limit)

    def last_position(self, tenant_id: str) -> str | None:
        self._insist(tenant_id)
        return super().last_position(tenant_id)

    def deaths(self, tenant_id: str, message: str) -> int:
        self._insist(tenant_id)
        return super().deaths(tenant_id, message)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(clock: FakeClock) -> Damaged:
    """Both tenants have an invocation whose worker is gone."""
    memory = Damaged(clock)
    for tenant_id in (TENANT, OTHER):
        memory.emit(started(make_identity(tenant_id=tenant_id, worker="gone")))
    memory.damaged = True
    return memory


def test_the_other_tenants_invocations_are_closed(
    memory: Damaged, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The damage is an alarm, once; when it is mended, theirs are closed too."""
    reconciler = Reconciler(memory, lease_seconds=LEASE, clock=clock, now=clock.now)
    closed: list[AuditRow] = []
    for _ in range(14):
        clock.pass_by(1)
        closed += reconciler.sweep().closed
    assert [(row.tenant_id, row.meta["reason"]) for row in closed] == [(OTHER, Reason.ABANDONED)]
    (alarm,) = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert TENANT in alarm.getMessage()
    memory.damaged = False
    for _ in range(14):
        clock.pass_by(1)
        closed += reconciler.sweep().closed
    assert [row.tenant_id for row in closed] == [OTHER, TENANT]


def test_an_invocation_whose_ending_is_not_taken_keeps_no_other_open(
    memory: Damaged,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where what is damaged shows only when the ending is emitted; it is told of once."""
    monkeypatch.setattr(memory, "running", lambda t: InMemory.running(memory, t))
    reconciler = Reconciler(memory, lease_seconds=LEASE, clock=clock, now=clock.now)
    closed: list[AuditRow] = []
    for _ in range(14):
        clock.pass_by(1)
        closed += reconciler.sweep().closed
    assert [row.tenant_id for row in closed] == [OTHER]
    assert [r.levelname for r in caplog.records].count("CRITICAL") == 1


def test_the_other_tenants_rows_are_counted(
    memory: Damaged, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the look fails, so that it is heard of."""
    told: dict[str, int] = {}
    monkeypatch.setattr(
        "audit.tail.metrics.arrived", lambda tenant, kinds: told.update({tenant: kinds.total()})
    )
    tail = Tail(memory, seconds=1, clock=clock)
    with pytest.raises(MemoryDamagedError):
        tail.look()
    memory.damaged = False
    for tenant_id in (OTHER, TENANT):
        memory.emit(started(make_identity(tenant_id=tenant_id)))
    memory.damaged = True
    with pytest.raises(MemoryDamagedError):
        tail.look()
    assert told == {OTHER: 1}


def test_the_other_tenants_spooled_rows_are_replayed(memory: Damaged, tmp_path: Path) -> None:
    """The damaged tenant's wait on, in their order, and all go when it is mended."""
    spool, rows = Spool(tmp_path, "memory"), []
    memory.damaged = False
    for tenant_id in (TENANT, OTHER, TENANT, OTHER):
        identity = make_identity(tenant_id=tenant_id)
        memory.emit(started(identity))
        rows.append(completed(identity))
        spool.keep(rows[-1])
    memory.damaged = True
    with pytest.raises(MemoryDamagedError):
        spool.replay(memory)
    assert spool.usage().rows == 2
    assert all(row in list(memory.rows(OTHER)) for row in rows[1::2])
    memory.damaged = False
    assert spool.replay(memory).emitted == 2
    assert [row.request_id for row in memory.rows(TENANT)][-2:] == [
        row.request_id for row in rows[::2]
    ]


def test_the_next_emit_of_another_tenant_is_not_spared(
    memory: Damaged, tmp_path: Path, clock: FakeClock
) -> None:
    """The memory has answered, so no breaker opens; what ended of the damaged tenant is spooled."""
    recorder = Recorder(memory, Spool(tmp_path, "m"), Breaker(cooldown=60, clock=clock))
    for ask in (
        lambda: recorder.start(started(make_identity())),
        lambda: recorder.deaths(TENANT, "message"),
    ):
        with pytest.raises(MemoryDamagedError):
            ask()
        assert recorder.start(started(make_identity(tenant_id=OTHER))) is Stored.NEW
    assert recorder.complete(completed(make_identity())) is Kept.SPOOL


def test_damage_is_an_alarm_of_the_keeper_and_no_outage(
    memory: Damaged, tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its round ends as any other, and what it could not do is told, once each."""
    keeper = Keeper(memory, Spool(tmp_path, "m"), holder="k", lease_seconds=LEASE, clock=clock)
    for _ in range(3):
        clock.pass_by(1)
        assert keeper.round().leads
    alarms = [r.getMessage() for r in caplog.records if r.levelno == logging.CRITICAL]
    assert len(alarms) == 2
    assert all(TENANT in alarm for alarm in alarms)
    assert "counting fails" in alarms[1]


@pytest.mark.parametrize("position", ["abc", "�", "18446744073709551616-0"])
def test_a_page_of_a_row_says_that_nobody_knows_what_is_sealed(
    clock: FakeClock, position: str
) -> None:
    """Where the position beside the checkpoint is none."""
    memory = InMemory(clock=clock)
    memory.emit(started(make_identity()))
    memory.swap_sealed(TENANT, None, b"note", position)
    assert proof_of(memory, list(memory.rows()), configured=True) is ProofState.UNKNOWN


def test_the_doctor_says_what_to_put_back(memory: Damaged) -> None:
    """And does not send anybody to start a memory that runs."""
    (found,) = examine([Probe(name="leases", look=lambda: leases(memory, LEASE), advice="start")])
    assert (found.level, TENANT in found.seen) == (Level.BAD, True)
    assert "put back" in found.advice
