"""audit/recorder.py: where a row goes while the memory answers, and while it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.breaker import Breaker
from audit.errors import (
    AuditMemoryError,
    MemoryUnavailableError,
    MemoryUnsuitableError,
    RowRefusedError,
    SpoolError,
)
from audit.memory.base import Once, Stored
from audit.recorder import Kept, Recorder
from audit.row import COMPLETED, LATE, STARTED, Reason
from audit.spool import QUARANTINE, Spool
from audit.testing import FakeClock
from tests.fakes import DOUBT, DOWN, FakeMemory
from tests.support import completed, make_ending, make_identity, refused, started

UNSUITABLE = MemoryUnsuitableError("the memory server may evict rows")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


@pytest.fixture
def spool(tmp_path: Path, memory: FakeMemory) -> Spool:
    return Spool(tmp_path, memory.name)


@pytest.fixture
def recorder(memory: FakeMemory, spool: Spool, clock: FakeClock) -> Recorder:
    return Recorder(memory, spool, Breaker(cooldown=1, clock=clock))


def broken_spool(tmp_path: Path) -> Spool:
    (tmp_path / "file").touch()
    return Spool(tmp_path / "file", "memory")


# --- start ----------------------------------------------------------------------------------------


def test_a_started_row_goes_to_the_memory(recorder: Recorder, memory: FakeMemory) -> None:
    """It is there when start returns."""
    recorder.start(started(make_identity()))
    assert memory.kinds() == [STARTED]


def test_a_started_row_may_ask_once(recorder: Recorder, memory: FakeMemory) -> None:
    """What the memory made of it is handed on: the row, or the one in its place."""
    rows = [started(make_identity()) for _ in range(2)]
    answers = [recorder.start(row, Once(token="m", seconds=9)) for row in rows]
    assert answers == [Stored.NEW, Stored.REPLAYED]
    assert [row.meta["redelivered"] for row in memory.stored] == [False, True]
    assert recorder.start(started(make_identity())) is Stored.NEW


@pytest.mark.parametrize("error", [DOWN, DOUBT, UNSUITABLE], ids=["down", "doubt", "unsuitable"])
def test_a_started_row_is_never_spooled(
    error: AuditMemoryError, recorder: Recorder, memory: FakeMemory, spool: Spool
) -> None:
    """The memory takes it or nothing runs; the error is the memory's own."""
    memory.plan.append((error, False))
    with pytest.raises(type(error)) as caught:
        recorder.start(started(make_identity()))
    assert caught.value is error
    assert spool.empty


def test_after_a_failure_a_start_fails_at_once(
    recorder: Recorder, memory: FakeMemory, clock: FakeClock
) -> None:
    """The memory is not asked before the cooldown is over, and the row surely did not land."""
    memory.plan.append((DOWN, False))
    for _ in range(3):
        with pytest.raises(MemoryUnavailableError) as caught:
            recorder.start(started(make_identity()))
    assert memory.emits == 1
    assert not caught.value.maybe_stored
    clock.pass_by(1)
    recorder.start(started(make_identity()))
    recorder.start(started(make_identity()))
    assert memory.kinds() == [STARTED] * 2


def test_a_row_that_the_memory_refuses_is_no_outage(recorder: Recorder, memory: FakeMemory) -> None:
    """The memory answers, so the next row is tried."""
    identity = make_identity()
    recorder.start(started(identity))
    with pytest.raises(RowRefusedError):
        recorder.start(started(identity, ts="2026-01-01T00:00:00.000000Z"))
    recorder.start(started(make_identity()))
    assert memory.kinds() == [STARTED] * 2


def test_nothing_starts_while_the_spool_is_full(
    memory: FakeMemory, tmp_path: Path, recorder: Recorder
) -> None:
    """The memory is not even asked; when the spool has room again, skills start again."""
    spool = Spool(tmp_path, memory.name, max_rows=1)
    recorder = Recorder(memory, spool)
    for _ in range(2):
        spool.keep(completed(make_identity(), make_ending(Reason.NOT_DISPATCHED)))
    with pytest.raises(MemoryUnavailableError, match="spool is full") as caught:
        recorder.start(started(make_identity()))
    assert memory.emits == 0
    assert not caught.value.maybe_stored
    spool.replay(memory)
    recorder.start(started(make_identity()))
    assert memory.kinds() == [STARTED]


# --- complete -------------------------------------------------------------------------------------


def test_a_completed_row_goes_to_the_memory(
    recorder: Recorder, memory: FakeMemory, spool: Spool
) -> None:
    """First, again, and as a rival's."""
    identity = make_identity()
    recorder.start(started(identity))
    row = completed(identity)
    assert [recorder.complete(row) for _ in range(2)] == [Kept.MEMORY] * 2
    assert recorder.complete(completed(identity, duration_ms=99)) is Kept.LATE
    assert memory.kinds() == [STARTED, COMPLETED, LATE]
    assert spool.empty


@pytest.mark.parametrize("landed", [False, True], ids=["not stored", "but stored"])
@pytest.mark.parametrize("error", [DOWN, DOUBT, UNSUITABLE], ids=["down", "doubt", "unsuitable"])
def test_a_completed_row_that_the_memory_does_not_take_is_spooled(
    error: AuditMemoryError, landed: bool, recorder: Recorder, memory: FakeMemory, spool: Spool
) -> None:
    """Whatever is wrong with the memory; replayed, it is on record once."""
    identity = make_identity()
    recorder.start(started(identity))
    memory.plan.append((error, landed))
    assert recorder.complete(completed(identity)) is Kept.SPOOL
    assert spool.usage().rows == 1
    spool.replay(memory)
    assert memory.kinds() == [STARTED, COMPLETED]


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "behind another"])
def test_a_try_that_a_signal_struck_is_not_taken_for_another(
    others: int, recorder: Recorder, memory: FakeMemory, spool: Spool
) -> None:
    """The row that it left in the spool is the same one: it waits once, behind others only."""
    identity = make_identity()
    recorder.start(started(identity))
    for _ in range(others):
        spool.keep(completed(identity, make_ending(Reason.HARD_TIME_LIMIT)))
    row = completed(identity)
    spool.keep(row)
    assert recorder.complete(row) is (Kept.BEHIND if others else Kept.SPOOL)
    assert spool.usage().rows == others + 1


def test_during_an_outage_an_ending_does_not_wait(
    recorder: Recorder, memory: FakeMemory, spool: Spool, clock: FakeClock
) -> None:
    """One emit in a cooldown asks the memory, all others go to the spool at once."""
    identities = [make_identity() for _ in range(12)]
    for identity in identities:
        recorder.start(started(identity))
    memory.plan.extend([(DOWN, False)] * 2)
    kept = [recorder.complete(completed(identity)) for identity in identities[:5]]
    clock.pass_by(1)
    kept += [recorder.complete(completed(identity)) for identity in identities[5:10]]
    assert kept == [Kept.SPOOL] * 10
    assert memory.emits == 12 + 2
    clock.pass_by(1)
    kept = [recorder.complete(completed(identity)) for identity in identities[10:]]
    assert kept == [Kept.MEMORY] * 2
    assert spool.usage().rows == 10


def test_a_completed_row_that_is_refused_for_good_is_set_aside(
    recorder: Recorder, memory: FakeMemory, spool: Spool
) -> None:
    """Its writer is told, and the row is in quarantine, byte for byte; nothing waits for replay."""
    row = completed(make_identity())
    with pytest.raises(RowRefusedError, match="no started row"):
        recorder.complete(row)
    (kept,) = (spool.directory / QUARANTINE).iterdir()
    assert kept.read_bytes() == row.to_bytes()
    assert spool.empty
    recorder.start(started(make_identity()))  # and the memory counts as healthy


def test_without_a_spool_the_memorys_error_is_the_answer(memory: FakeMemory) -> None:
    """Nowhere else to go."""
    recorder = Recorder(memory)
    memory.plan.append((DOWN, False))
    with pytest.raises(MemoryUnavailableError):
        recorder.complete(completed(make_identity()))
    with pytest.raises(MemoryUnavailableError, match="a moment ago"):
        recorder.settle(completed(make_identity()))
    recorder.keep(completed(make_identity()))
    with pytest.raises(RowRefusedError):
        Recorder(memory).complete(completed(make_identity()))


def test_when_the_disk_fails_too_its_error_is_the_answer(
    memory: FakeMemory, tmp_path: Path
) -> None:
    """In every way that leads to the disk."""
    recorder = Recorder(memory, broken_spool(tmp_path), Breaker(cooldown=0))
    row = completed(make_identity())
    with pytest.raises(SpoolError):  # the quarantine
        recorder.complete(row)
    memory.plan.append((DOWN, False))
    with pytest.raises(SpoolError):
        recorder.complete(row)
    with pytest.raises(SpoolError):
        recorder.keep(row)


# --- settle ---------------------------------------------------------------------------------------


def test_an_ending_seen_from_outside_goes_to_the_memory(
    recorder: Recorder, memory: FakeMemory
) -> None:
    """With nothing spooled there is nothing to wait for."""
    identity = make_identity()
    recorder.start(started(identity))
    lost = completed(identity, make_ending(Reason.WORKER_LOST))
    assert recorder.settle(lost) is Kept.MEMORY
    assert memory.stored[-1].meta["reason"] == Reason.WORKER_LOST


def test_an_ending_seen_from_outside_stands_in_line(
    recorder: Recorder, memory: FakeMemory, spool: Spool
) -> None:
    """Behind the ending that the body itself had spooled: that one stands, with no late row."""
    identity = make_identity()
    recorder.start(started(identity))
    memory.plan.append((DOWN, False))
    recorder.complete(completed(identity))
    emits = memory.emits
    assert recorder.settle(completed(identity, make_ending(Reason.WORKER_LOST))) is Kept.SPOOL
    assert memory.emits == emits
    spool.replay(memory)
    assert memory.kinds() == [STARTED, COMPLETED]
    assert memory.stored[-1].meta["reason"] == Reason.RETURNED


def test_an_ending_seen_from_outside_waits_for_other_processes_too(
    recorder: Recorder, memory: FakeMemory, tmp_path: Path
) -> None:
    """The spool is the host's: what a pool child put there counts."""
    identity = make_identity()
    recorder.start(started(identity))
    assert recorder.settle(completed(make_identity(), make_ending(Reason.SHUTDOWN))) is Kept.SETTLED
    Spool(tmp_path, memory.name).keep(completed(identity))
    lost = completed(identity, make_ending(Reason.WORKER_LOST))
    assert recorder.settle(lost) is Kept.SPOOL


def test_an_ending_seen_from_outside_survives_an_outage(
    recorder: Recorder, memory: FakeMemory, spool: Spool
) -> None:
    """It is spooled like any other."""
    identity = make_identity()
    recorder.start(started(identity))
    memory.plan.append((DOWN, False))
    lost = completed(identity, make_ending(Reason.WORKER_LOST))
    assert recorder.settle(lost) is Kept.SPOOL
    spool.replay(memory)
    assert memory.kinds() == [STARTED, COMPLETED]


def test_what_was_refused_needs_no_ending(
    recorder: Recorder, memory: FakeMemory, spool: Spool
) -> None:
    """A child killed after it refused its message: nothing to keep, and no alarm."""
    identity = make_identity()
    recorder.start(refused(identity))
    lost = completed(identity, make_ending(Reason.WORKER_LOST))
    assert recorder.settle(lost) is Kept.SETTLED
    assert len(memory.stored) == 1
    assert not (spool.directory / QUARANTINE).exists()
