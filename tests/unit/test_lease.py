"""tasks/lease.py: held while the process lives, given back when it ends, replaying meanwhile."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from audit.errors import MemoryUnavailableError
from audit.memory.base import Stored
from audit.row import COMPLETED, STARTED, AuditRow
from audit.spool import Spool
from audit.testing import InMemory
from tasks import lease as module
from tasks.lease import Lease
from tests.support import check_every_row, completed, make_identity, started, wait_until

FORK = multiprocessing.get_context("fork")


class CountingMemory(InMemory):
    """Counts the renewals, and fails in them as told."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals = 0
        self.error: Exception | None = None

    def hold_lease(self, worker: str, seconds: float) -> None:
        self.renewals += 1
        if self.error is not None:
            raise self.error
        super().hold_lease(worker, seconds)


@pytest.fixture
def memory() -> Iterator[CountingMemory]:
    memory = CountingMemory()
    yield memory
    memory.down = False
    check_every_row(memory)


@pytest.fixture
def spool(tmp_path: Path, memory: CountingMemory) -> Spool:
    return Spool(tmp_path, memory.name)


@pytest.fixture(autouse=True)
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The log, and a thread that looks often."""
    monkeypatch.setattr(module, "REPLAY_SECONDS", 0.002)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.002)
    caplog.set_level(logging.WARNING, logger="audit")
    return caplog


@pytest.fixture
def make(memory: CountingMemory, spool: Spool) -> Iterator[Callable[..., Lease]]:
    """Makes leases; each is given back when the test ends."""
    made: list[Lease] = []

    def make(seconds: float = 60.0) -> Lease:
        made.append(Lease(memory, spool, "w", seconds))
        return made[-1]

    yield make
    for lease in made:
        lease.give_back()


def spooled(memory: InMemory, spool: Spool, count: int) -> None:
    for _ in range(count):
        identity = make_identity()
        memory.emit(started(identity))
        spool.keep(completed(identity))


def test_a_lease_is_held_when_hold_returns(
    memory: CountingMemory, make: Callable[..., Lease]
) -> None:
    """So that nothing can start without."""
    make().hold()
    assert memory.leases(["w"]) == {"w"}


def test_a_lease_is_renewed_by_itself(memory: CountingMemory, make: Callable[..., Lease]) -> None:
    """Again and again while the process lives."""
    make(seconds=0.03).hold()
    wait_until(lambda: memory.renewals > 10)


def test_a_lease_is_not_renewed_at_every_look(
    memory: CountingMemory, spool: Spool, make: Callable[..., Lease]
) -> None:
    """Three times while it lasts, however often the spool is looked at."""
    make(seconds=3600).hold()
    for _ in range(3):
        spooled(memory, spool, 1)
        wait_until(lambda: spool.empty)
    assert memory.renewals == 1


def test_a_lease_that_is_given_back_is_gone_at_once(
    memory: CountingMemory, make: Callable[..., Lease]
) -> None:
    """And giving it back again takes nothing from anybody who holds it since."""
    lease = make()
    lease.hold()
    lease.give_back()
    assert memory.leases(["w"]) == set()
    memory.hold_lease("w", 60)
    lease.give_back()
    assert memory.leases(["w"]) == {"w"}


def test_what_still_waits_is_replayed_before_the_lease_is_given_back(
    memory: CountingMemory, spool: Spool
) -> None:
    """A clean end leaves nothing behind while the memory answers."""
    spooled(memory, spool, 2)
    Lease(memory, spool, "w", 60).give_back()
    assert list(memory.running()) == []
    assert spool.empty


def test_a_forked_child_gives_nothing_back(
    memory: CountingMemory, spool: Spool, make: Callable[..., Lease]
) -> None:
    """The lease is its parent's: a pool child that ends must not condemn the worker."""
    lease = make()
    spool.keep(completed(make_identity()))

    def child() -> None:
        lease.give_back()
        assert not lease._stop.is_set()
        assert not spool.empty

    process = FORK.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    spool.replay(memory)


def test_a_memory_out_of_reach_stops_nobody(
    memory: CountingMemory, make: Callable[..., Lease], log: pytest.LogCaptureFixture
) -> None:
    """hold returns, the log says so, and the lease is taken soon after the memory is back."""
    memory.down = True
    make().hold()
    assert "could not be renewed" in log.text
    memory.down = False
    wait_until(lambda: memory.leases(["w"]) == {"w"})


def test_a_lease_lost_in_an_outage_is_taken_again(
    memory: CountingMemory, make: Callable[..., Lease]
) -> None:
    """Within a look of the memory's return, not at the end of a whole period."""
    make(seconds=0.03).hold()
    memory.down = True
    seen = memory.renewals
    wait_until(lambda: memory.renewals > seen + 3)
    memory.down = False
    wait_until(lambda: memory.leases(["w"]) == {"w"})


def test_no_error_ends_the_thread(
    memory: CountingMemory, make: Callable[..., Lease], log: pytest.LogCaptureFixture
) -> None:
    """A bug in a memory included: a thread that dies would condemn what lives."""
    make(seconds=0.03).hold()
    memory.error = KeyError("bug")
    wait_until(lambda: "goes on after an error" in log.text)
    memory.error = None
    seen = memory.renewals
    wait_until(lambda: memory.renewals > seen + 3)


def test_what_waits_is_replayed_without_any_keeper(
    memory: CountingMemory, spool: Spool, make: Callable[..., Lease], log: pytest.LogCaptureFixture
) -> None:
    """As soon as the memory takes it."""
    make().hold()
    spooled(memory, spool, 3)
    wait_until(lambda: spool.empty)
    wait_until(lambda: "reached the memory" in log.text)
    assert [row.kind for row in memory.rows()].count(COMPLETED) == 3


def test_replay_goes_on_after_an_outage(
    memory: CountingMemory, spool: Spool, make: Callable[..., Lease]
) -> None:
    """What waited through it is on record, once."""
    spooled(memory, spool, 3)
    memory.down = True
    make().hold()
    seen = memory.renewals
    wait_until(lambda: memory.renewals > seen + 3)
    assert spool.usage().rows == 3
    memory.down = False
    wait_until(lambda: spool.empty)
    kinds = [row.kind for row in memory.rows()]
    assert (kinds.count(STARTED), kinds.count(COMPLETED)) == (3, 3)


def test_giving_back_in_an_outage_is_no_error(
    memory: CountingMemory, make: Callable[..., Lease], log: pytest.LogCaptureFixture
) -> None:
    """The lease runs out by itself."""
    lease = make()
    lease.hold()
    memory.down = True
    lease.give_back()
    assert "runs out by itself" in log.text
    with pytest.raises(MemoryUnavailableError):
        memory.leases(["w"])


def test_with_gevents_patches_the_thread_is_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greenlet would starve while a body computes: the originals are used."""

    class Monkey:
        @staticmethod
        def is_module_patched(module: str) -> bool:
            return True

        @staticmethod
        def get_original(module: str, name: str) -> object:
            return f"original {module}.{name}"

    monkeypatch.setitem(module.sys.modules, "gevent.monkey", Monkey)
    assert module._original("threading", "Event") == "original threading.Event"
    begun: list[object] = []
    monkeypatch.setattr(
        Monkey,
        "get_original",
        staticmethod(lambda module, name: lambda run, args: begun.append((name, run, args))),
    )
    run = lambda: None  # noqa: E731
    module._start_native_thread(run)
    assert begun == [("start_new_thread", run, ())]


def test_a_long_replay_never_keeps_the_lease_from_being_renewed(
    memory: CountingMemory,
    spool: Spool,
    make: Callable[..., Lease],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However slowly rows reach the memory, between two of them the lease is seen to."""
    for _ in range(30):
        identity = make_identity()
        memory.emit(started(identity))
        spool.keep(completed(identity))
    renewals: list[int] = []
    emit = memory.emit

    def slow(row: AuditRow) -> Stored:
        renewals.append(memory.renewals)
        threading.Event().wait(0.02)
        return emit(row)

    monkeypatch.setattr(memory, "emit", slow)
    make(seconds=0.15).hold()
    wait_until(lambda: spool.empty, 30)
    assert len(set(renewals)) > 3
