"""audit/reconciler.py: who is condemned, when, and who is not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.errors import AuditMemoryError
from audit.reconciler import PERIODS, RENEWALS, Reconciler, Sweep, identity_of
from audit.row import COMPLETED, STARTED, AuditRow, Identity, Outcome, Reason
from audit.testing import FakeClock, InMemory
from tests.support import (
    check_every_row,
    completed,
    make_ending,
    make_identity,
    started,
    validate_row,
)

LEASE = 15.0
PERIOD = LEASE / RENEWALS
STEP = 1.0


class World:
    """A memory, an observer, and processes that renew their leases, on one clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.memory = InMemory(clock=self.clock)
        self.reconciler = self.observer()
        self.living: set[str] = set()
        self._renew_at: dict[str, float] = {}

    def observer(self, memory: InMemory | None = None) -> Reconciler:
        return Reconciler(
            memory or self.memory, lease_seconds=LEASE, clock=self.clock, now=self.clock.now
        )

    def begin(self, worker: str, **changes: object) -> Identity:
        """An invocation that ``worker`` runs."""
        identity = make_identity(worker=worker, **changes)
        self.memory.emit(started(identity))
        return identity

    def live(self, *workers: str) -> None:
        self.living.update(workers)
        self._renew()

    def die(self, *workers: str) -> None:
        self.living.difference_update(workers)

    def pass_by(self, seconds: float, *, looking: bool = True) -> list[AuditRow]:
        """Time passes; who lives renews once a period, and the observer looks once a second."""
        closed: list[AuditRow] = []
        for _ in range(round(seconds / STEP)):
            self.clock.pass_by(STEP)
            self._renew()
            if looking:
                closed += self.look()
        return closed

    def look(self) -> list[AuditRow]:
        try:
            return self.reconciler.sweep().closed
        except AuditMemoryError:
            return []

    def _renew(self) -> None:
        if self.memory.down:
            return
        for worker in self.living:
            if self.clock.seconds >= self._renew_at.get(worker, 0.0):
                self.memory.hold_lease(worker, LEASE)
                self._renew_at[worker] = self.clock.seconds + PERIOD


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.memory.down = False
    check_every_row(world.memory)


def test_nothing_runs_nothing_is_closed(world: World) -> None:
    """An empty memory is no trouble."""
    assert world.reconciler.sweep() == Sweep(running=0, oldest_seconds=0.0)


def test_who_holds_a_lease_is_never_closed(world: World) -> None:
    """However long the body runs."""
    world.live("w")
    world.begin("w")
    assert world.pass_by(3600) == []
    assert [row.kind for row in world.memory.rows()] == [STARTED]


def test_who_died_is_closed_when_its_lease_was_absent_for_the_patience(world: World) -> None:
    """Two periods after the lease ran out, within 30 s of the death in all; not a look before."""
    world.live("w")
    ours = [world.begin("w") for _ in range(3)]
    world.die("w")
    assert world.reconciler.patience == PERIODS * PERIOD == 10.0
    assert world.pass_by(LEASE + world.reconciler.patience - STEP) == []
    closed = world.pass_by(2 * STEP)
    assert [row.request_id for row in closed] == [identity.request_id for identity in ours]
    assert world.pass_by(60) == []
    assert [row.kind for row in world.memory.rows()] == [STARTED] * 3 + [COMPLETED] * 3


def test_a_lease_given_back_is_absent_at_once(world: World) -> None:
    """What a process left open when it ended cleanly waits for the patience alone."""
    world.live("w")
    world.begin("w")
    world.die("w")
    world.memory.drop_lease("w")
    assert world.pass_by(world.reconciler.patience) == []
    assert len(world.pass_by(STEP)) == 1


def test_only_the_dead_are_closed(world: World) -> None:
    """Of several workers, tenants and processes without any lease at all."""
    world.live("alive", "dead")
    other = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
    kept = [world.begin("alive"), world.begin("alive", tenant_id=other)]
    gone = [world.begin("dead"), world.begin("dead", tenant_id=other), world.begin("never-held")]
    world.die("dead")
    closed = world.pass_by(60)
    assert {row.request_id for row in closed} == {identity.request_id for identity in gone}
    assert {row.request_id for row in world.memory.running()} == {i.request_id for i in kept}


def test_the_row_says_abandoned(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Panic, abandoned, a lower bound, everything else as the started row; and one sev-2 record."""
    caplog.set_level(logging.DEBUG, logger="audit")
    world.live("w")
    identity = world.begin(
        "w",
        attempt=2,
        redelivered=True,
        parent_request_id=make_identity().request_id,
        on_behalf_of="jane@example.org",
        schedule="nightly",
        due="2026-11-29T21:45:00.000000Z",
        context_key="2026.a",
    )
    world.die("w")
    (row,) = world.pass_by(60)
    validate_row(row)
    (begun,) = world.memory.rows(kind=STARTED)
    assert identity_of(begun) == identity
    assert row.payload["outcome"] == Outcome.PANIC
    assert row.payload["result_hash"] == ""
    assert row.payload["tenant_id"] == identity.tenant_id
    assert (row.meta["reason"], row.meta["duration"]) == (Reason.ABANDONED, "lower_bound")
    told = {"reason", "duration"}
    assert {k: v for k, v in row.meta.items() if k not in told} == {
        k: v for k, v in begun.meta.items() if k not in told
    }
    (record,) = caplog.records
    assert getattr(record, "severity", "") == "sev-2"
    assert identity.request_id in record.getMessage()


def test_the_duration_runs_to_the_last_sign_of_life(world: World) -> None:
    """By the store's clock, whenever the lease was renewed last."""
    world.live("w")
    world.begin("w")
    world.pass_by(12)  # renewed at 5 and 10
    world.die("w")
    (row,) = world.pass_by(60)
    assert row.payload["duration_ms"] == 10_000


def test_who_never_gave_a_sign_of_life_ran_no_time_that_is_known(world: World) -> None:
    """0, as a lower bound."""
    world.begin("never-held")
    (row,) = world.pass_by(60)
    assert row.payload["duration_ms"] == 0


# --- outages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("outage", [1, 4, 16, 120])
def test_an_outage_condemns_nobody_who_lives(world: World, outage: int) -> None:
    """All leases run out meanwhile; each living process renews within a period of the memory's
    return, at its last moment, and nobody is closed."""
    workers = [f"w{number}" for number in range(5)]
    world.live(*workers)
    for worker in workers:
        world.begin(worker)
    world.pass_by(7)
    world.memory.down = True
    assert world.pass_by(outage) == []
    world.memory.down = False
    late, world.living = set(world.living), set()
    assert world.pass_by(PERIOD) == []
    world.live(*late)
    assert world.pass_by(300) == []
    assert len(list(world.memory.running())) == 5


def test_after_an_outage_the_dead_are_closed_and_counted_anew(world: World) -> None:
    """What was observed before the outage does not count; the patience does, from its end on."""
    world.live("w")
    world.begin("w")
    world.die("w")
    world.pass_by(LEASE + world.reconciler.patience - 2 * STEP)
    world.memory.down = True
    world.pass_by(120)
    world.memory.down = False
    assert world.pass_by(world.reconciler.patience) == []
    assert len(world.pass_by(STEP)) == 1


def test_a_blip_between_two_looks_begins_the_count_anew(world: World) -> None:
    """One failed look is a break, too."""
    world.begin("gone")
    world.pass_by(world.reconciler.patience)
    world.memory.down = True
    assert world.pass_by(STEP) == []
    world.memory.down = False
    assert world.pass_by(world.reconciler.patience) == []
    assert len(world.pass_by(STEP)) == 1


def test_an_outage_that_nobody_saw_is_a_break_too(world: World) -> None:
    """The observer itself stood still for longer than a period: leases may have come and gone."""
    world.begin("gone")
    world.pass_by(3 * STEP)
    world.pass_by(PERIOD + STEP, looking=False)
    assert world.look() == []
    assert world.pass_by(world.reconciler.patience - STEP) == []
    assert len(world.pass_by(2 * STEP)) == 1


def test_a_pause_of_up_to_a_period_is_no_break(world: World) -> None:
    """A slow look now and then does not put off the closing."""
    world.begin("gone")
    world.look()
    for _ in range(PERIODS):
        assert len(list(world.memory.rows(kind=COMPLETED))) == 0
        world.pass_by(PERIOD, looking=False)
        closed = world.look()
    assert len(closed) == 1


def test_a_lease_that_comes_back_clears_its_holder(world: World) -> None:
    """Late by less than the patience: alive, and the count begins anew should it go again."""
    world.begin("slow")
    world.pass_by(world.reconciler.patience - STEP)
    world.memory.hold_lease("slow", 3 * STEP)
    assert world.pass_by(2 * STEP) == []
    assert world.pass_by(world.reconciler.patience) == []
    assert len(world.pass_by(2 * STEP)) == 1


class SlowLeases(InMemory):
    """Takes a while to say who holds a lease."""

    takes = 0.0

    def leases(self, workers: Collection[str]) -> set[str]:
        found = super().leases(workers)
        self._clock.pass_by(self.takes)  # type: ignore[attr-defined]
        return found


def test_time_spent_waiting_for_the_answer_counts_for_the_living() -> None:
    """A lease seen absent counts from the end of the first look to the start of the last."""
    world = World()
    world.memory = memory = SlowLeases(clock=world.clock)
    memory.takes = 4.0
    reconciler = world.observer(memory)
    world.begin("gone")
    begun = world.clock.seconds
    while not reconciler.sweep().closed:
        world.clock.pass_by(0.5)
    assert world.clock.seconds - begun >= reconciler.patience + 2 * memory.takes


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(["up", "down", "unobserved"])), max_size=12
    )
)
def test_no_history_of_outages_condemns_the_living(
    history: list[tuple[int, str]],
) -> None:
    """Whatever the memory and the observer do, who renews within a period is never closed; and who
    is dead is closed once the memory answers for the patience."""
    world = World()
    world.live("alive")
    alive, dead = world.begin("alive"), world.begin("dead")
    for seconds, state in history:
        world.memory.down = state == "down"
        for row in world.pass_by(seconds, looking=state != "unobserved"):
            assert row.request_id == dead.request_id
    world.memory.down = False
    world.pass_by(PERIOD + world.reconciler.patience + 2 * STEP)
    assert [row.request_id for row in world.memory.running()] == [alive.request_id]


# --- several observers ----------------------------------------------------------------------------


def test_two_reconcilers_write_one_row_and_no_late_one(world: World) -> None:
    """The second is told that it is settled, and reports nothing as closed."""
    world.begin("gone")
    one, two = world.reconciler, world.observer()
    counts = []
    for _ in range(30):
        world.clock.pass_by(STEP)
        counts.append((len(one.sweep().closed), len(two.sweep().closed)))
    assert sum(first for first, _ in counts) == 1
    assert sum(second for _, second in counts) == 0
    assert [row.kind for row in world.memory.rows()] == [STARTED, COMPLETED]


def test_reconcilers_that_close_at_the_same_moment_write_one_row(world: World) -> None:
    """Four threads, each with the same open invocations in its hands."""
    for _ in range(25):
        world.begin("gone")
    observers = [world.observer() for _ in range(4)]
    for observer in observers:
        observer.sweep()
    world.clock.pass_by(PERIOD)
    for observer in observers:
        observer.sweep()
    world.clock.pass_by(PERIOD)
    ready = threading.Barrier(4)
    closed: list[AuditRow] = []

    def sweep(observer: Reconciler) -> None:
        ready.wait(30)
        closed.extend(observer.sweep().closed)

    threads = [threading.Thread(target=sweep, args=(observer,)) for observer in observers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(closed) == 25
    assert [row.kind for row in world.memory.rows()] == [STARTED] * 25 + [COMPLETED] * 25


def test_what_was_closed_meanwhile_is_left_alone(world: World) -> None:
    """The process that ran it was faster than the sweep that had already seen it open."""
    identity = world.begin("gone")
    (begun,) = world.memory.running()
    world.memory.emit(completed(identity))
    assert world.reconciler._close(begun) is None
    assert [row.kind for row in world.memory.rows()] == [STARTED, COMPLETED]


def test_who_was_only_cut_off_leaves_a_late_row(world: World) -> None:
    """Its result is kept beside the abandoned ending, which stands."""
    identity = world.begin("cut-off")
    world.pass_by(60)
    world.memory.emit(completed(identity, make_ending()))
    rows = list(world.memory.rows(request_id=identity.request_id))
    assert [row.meta.get("reason") for row in rows] == [None, Reason.ABANDONED, Reason.RETURNED]


# --- what a sweep tells ---------------------------------------------------------------------------


def test_a_sweep_tells_what_it_saw(world: World) -> None:
    """Running, the age of the oldest, the suspects, and what was closed."""
    world.live("alive")
    for worker, age in (("alive", 30), ("gone", 20), ("gone", 10)):
        row = started(make_identity(worker=worker))
        earlier = world.clock.seconds - age
        stamp = FakeClock(earlier).now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        world.memory.emit(AuditRow(kind=row.kind, ts=stamp, payload=row.payload, meta=row.meta))
    sweep = world.reconciler.sweep()
    assert (sweep.running, sweep.oldest_seconds, sweep.suspects) == (3, 30.0, 1)
    assert sweep.closed == []
    for _ in range(10):
        world.clock.pass_by(STEP)
        world._renew()
        sweep = world.reconciler.sweep()
    assert (sweep.running, len(sweep.closed), sweep.suspects) == (1, 2, 0)


def test_a_clock_ahead_of_the_observers_makes_no_negative_age(world: World) -> None:
    """0 at least."""
    world.memory.emit(started(make_identity(), ts="2199-01-01T00:00:00.000000Z"))
    assert world.reconciler.sweep().oldest_seconds == 0.0
