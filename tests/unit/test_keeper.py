"""audit/keeper.py: who leads, what a round does, and what an outage changes."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit import keeper as module
from audit.errors import LedgerKeyError, MemoryUnavailableError
from audit.keeper import ROLE, Keeper, Round
from audit.ledger.sealer import SealRound
from audit.row import COMPLETED, STARTED, AuditRow, Reason
from audit.spool import Spool
from audit.testing import FakeClock, InMemory
from tests.support import check_every_row, completed, make_ending, make_identity, started

LEASE = 15.0


class House:
    """One memory, one clock, and keepers on hosts of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.memory = InMemory(clock=self.clock)

    def spool(self, host: str) -> Spool:
        return Spool(self.directory / host, self.memory.name)

    def keeper(self, host: str) -> Keeper:
        return Keeper(
            self.memory,
            self.spool(host),
            holder=host,
            lease_seconds=LEASE,
            clock=self.clock,
        )

    def rounds(self, keeper: Keeper, seconds: float) -> list[AuditRow]:
        """Rounds for so long; the rows they closed."""
        closed: list[AuditRow] = []
        for _ in range(round(seconds / keeper.interval)):
            self.clock.pass_by(keeper.interval)
            sweep = keeper.round().sweep
            closed += sweep.closed if sweep else []
        return closed


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


class Gauges:
    """Stands in for :mod:`audit.metrics`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **named: self.calls.append((name, values, named))


@pytest.mark.parametrize(("lease", "interval"), [(0.3, 0.05), (3, 0.5), (15, 1), (3600, 1)])
def test_rounds_are_closer_together_than_a_period(
    lease: float, interval: float, tmp_path: Path
) -> None:
    """Else every round would look like the first after a break, and nothing would be closed."""
    spool = Spool(tmp_path, "memory")
    keeper = Keeper(InMemory(), spool, holder="k", lease_seconds=lease)
    assert keeper.interval == pytest.approx(interval)
    assert keeper.interval <= lease / 6


def test_a_keeper_alone_leads_and_closes(house: House) -> None:
    """What is abandoned is closed after the patience, by its rounds."""
    house.memory.emit(started(make_identity(worker="gone")))
    (row,) = house.rounds(house.keeper("a"), 12)
    assert row.meta["reason"] == Reason.ABANDONED
    assert house.memory.is_led(ROLE)
    check_every_row(house.memory)


def test_one_of_two_leads(house: House) -> None:
    """The other sweeps nothing, for as long as the first goes on."""
    first, second = house.keeper("a"), house.keeper("b")
    for _ in range(60):
        house.clock.pass_by(1)
        assert (first.round().leads, second.round().leads) == (True, False)
    assert second.round().sweep is None


def test_a_leader_that_gives_back_is_followed_at_once(house: House) -> None:
    """The next round of the other one leads."""
    first, second = house.keeper("a"), house.keeper("b")
    first.round()
    second.round()
    first.give_back()
    assert second.round().leads
    assert not first.round().leads


def test_a_leader_that_dies_is_followed_when_its_lease_is_over(house: House) -> None:
    """By whoever asks then; and the follower observes for itself before it closes."""
    house.memory.emit(started(make_identity(worker="gone")))
    first, second = house.keeper("a"), house.keeper("b")
    house.rounds(first, 8)
    led = []
    for _ in range(14):
        house.clock.pass_by(1)
        led.append(second.round().leads)
    assert not any(led)
    assert house.rounds(second, 10) == []
    assert second.round().leads
    assert len(house.rounds(second, 2)) == 1


def test_who_follows_forgets_what_it_saw_when_it_led(house: House) -> None:
    """It did not look meanwhile."""
    first, second = house.keeper("a"), house.keeper("b")
    house.memory.emit(started(make_identity(worker="gone")))
    house.rounds(first, 9)
    first.give_back()
    second.round()
    first.round()
    second.give_back()
    assert house.rounds(first, 10) == []
    assert len(house.rounds(first, 2)) == 1


def test_a_round_replays_before_it_sweeps(house: House) -> None:
    """The ending that the body had, spooled by a process that died since, stands."""
    identity = make_identity(worker="gone")
    house.memory.emit(started(identity))
    keeper = house.keeper("a")
    house.rounds(keeper, 10)
    house.spool("a").keep(completed(identity))
    house.clock.pass_by(1)
    did = keeper.round()
    assert did.replayed == 1
    assert did.sweep is not None
    assert did.sweep.closed == []
    assert [row.meta["reason"] for row in house.memory.rows(kind=COMPLETED)] == [Reason.RETURNED]


def test_every_keeper_replays_what_waits_on_its_host(house: House) -> None:
    """Leading or not: nobody else can reach that disk."""
    first, second = house.keeper("a"), house.keeper("b")
    first.round()
    identities = [make_identity() for _ in range(3)]
    for identity in identities:
        house.memory.emit(started(identity))
        house.spool("b").keep(completed(identity))
    assert first.round().replayed == 0
    assert second.round() == Round(leads=False, replayed=3, sweep=None)
    assert list(house.memory.running()) == []


def test_a_round_in_an_outage_fails_and_begins_to_observe_anew(house: House) -> None:
    """Whoever renews after it is safe."""
    keeper = house.keeper("a")
    house.memory.emit(started(make_identity(worker="w")))
    house.rounds(keeper, 9)
    house.memory.down = True
    with pytest.raises(MemoryUnavailableError):
        keeper.round()
    house.memory.down = False
    assert house.rounds(keeper, 10) == []
    house.memory.hold_lease("w", LEASE)
    assert house.rounds(keeper, 10) == []


def test_a_disk_that_fails_stops_no_sweep(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits there waits on, with an error in the log; the dead are closed all the same."""
    identity = make_identity()
    house.memory.emit(started(identity))
    house.spool("a").keep(completed(identity))
    house.memory.emit(started(make_identity(worker="gone")))

    def fail(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", fail)
    assert len(house.rounds(house.keeper("a"), 12)) == 1
    assert "Read-only file system" in caplog.text


def test_a_round_measures(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads, what waits on this host, what runs, how old the oldest is, what has no
    lease; a follower knows the first two alone."""
    gauges = Gauges()
    monkeypatch.setattr(module, "metrics", gauges)
    house.memory.emit(started(make_identity()))
    first, second = house.keeper("a"), house.keeper("b")
    first.round()
    second.round()
    (leads, spooled, swept, follows, also_spooled) = gauges.calls
    assert (leads, follows) == (("leads", (True,), {}), ("leads", (False,), {}))
    assert spooled == also_spooled == ("spooled", (0, 0), {})
    assert (swept[0], swept[2]["running"]) == ("swept", 1)
    assert swept[2]["oldest_seconds"] >= 0
    assert [seen.count for seen in swept[2]["orphans"].values()] == [1]


# --- sealing --------------------------------------------------------------------------------------


class Seals:
    """Stands in for a sealer: each round does what it is told, or nothing."""

    def __init__(self, *outcomes: SealRound | Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.rounds = 0
        self.go_on: Callable[[], bool] = lambda: True

    def round(self, go_on: Callable[[], bool]) -> SealRound | None:
        self.rounds += 1
        self.go_on = go_on
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def sealing(house: House, host: str, seals: Seals, seconds: float = 1.0) -> Keeper:
    return Keeper(
        house.memory,
        house.spool(host),
        holder=host,
        lease_seconds=LEASE,
        sealer=seals,  # type: ignore[arg-type]
        seal_seconds=seconds,
        clock=house.clock,
    )


def test_the_keeper_that_leads_seals(house: House) -> None:
    """The other one does not; where there is no ledger, nobody does."""
    did = SealRound(rows=3, logs=1, waiting=0, faults={})
    seals, others = Seals(did), Seals(did)
    first, second = sealing(house, "a", seals), sealing(house, "b", others)
    assert first.round().sealed == did
    assert second.round().sealed is None
    assert (seals.rounds, others.rounds) == (1, 0)
    first.give_back()
    assert house.keeper("c").round().sealed is None


def test_it_seals_as_often_as_it_is_told_to(house: House) -> None:
    """However close together its rounds are."""
    seals = Seals()
    house.rounds(sealing(house, "a", seals, seconds=5), 30)
    assert seals.rounds == 6


def test_sealing_stops_in_time_for_the_next_sweep(house: House) -> None:
    """However much waits to be sealed."""
    seals = Seals()
    keeper = sealing(house, "a", seals)
    keeper.round()
    assert seals.go_on()
    house.clock.pass_by(keeper.interval)
    assert not seals.go_on()


def test_no_fault_of_the_ledger_stops_the_sweep(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged keys are sev-1, once for as long as they last; who is abandoned is closed."""
    house.memory.emit(started(make_identity(worker="gone")))
    seals = Seals(*[LedgerKeyError("restore the keys")] * 20)
    assert len(house.rounds(sealing(house, "a", seals), 12)) == 1
    alarms = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert [alarm.__dict__["severity"] for alarm in alarms] == ["sev-1"]
    assert "nothing is sealed: restore the keys" in caplog.text


def test_an_outage_while_it_seals_is_told_and_the_sweep_stands(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """What the reconciler has observed until then goes on counting."""
    house.memory.emit(started(make_identity(worker="gone")))
    seals = Seals(*[MemoryUnavailableError("gone")] * 20)
    assert len(house.rounds(sealing(house, "a", seals), 12)) == 1
    assert "the ledger waits for the memory" in caplog.text


class Broken(Exception):
    """No error of ours."""


def broken(*_: object, **__: object) -> None:
    raise Broken("a row's secret")


@pytest.mark.parametrize("work", ["replay", "sweep", "seal", "duty"])
def test_whatever_one_duty_raises_stops_no_other(
    work: str, house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An alarm with its class, once, and without its text; all the rest is done in each round."""
    begun: list[int] = []
    seals = Seals(*[SealRound(rows=1, logs=1, waiting=0, faults={})] * 20)
    keeper = Keeper(
        house.memory,
        house.spool("a"),
        holder="a",
        lease_seconds=LEASE,
        sealer=seals,  # type: ignore[arg-type]
        duties=[broken if work == "duty" else lambda: None, lambda: begun.append(1)],
        clock=house.clock,
    )
    house.memory.emit(started(make_identity(worker="gone")))
    if work == "replay":
        monkeypatch.setattr(keeper._spool, "replay", broken)
    if work == "sweep":
        monkeypatch.setattr(keeper._reconciler, "_sweep", broken)
    if work == "seal":
        monkeypatch.setattr(seals, "round", broken)
    told: list[Round] = []
    keeper.keep(Stop(house, 14), told.append)  # type: ignore[arg-type]
    assert len(told) == len(begun) == 14
    assert sum(len(did.sweep.closed) for did in told if did.sweep) == (work != "sweep")
    assert sum(did.sealed is not None for did in told) == (0 if work == "seal" else 14)
    (alarm,) = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert alarm.__dict__["severity"] == "sev-1"
    assert "Broken" in alarm.getMessage()
    assert "secret" not in alarm.getMessage()


def test_only_the_leader_begins_its_duties(house: House) -> None:
    """Once in each round, after it has sealed; whoever follows begins nothing."""
    begun: list[str] = []
    first, second = (
        Keeper(
            house.memory,
            house.spool(host),
            holder=host,
            lease_seconds=LEASE,
            duties=[lambda host=host: begun.append(host)] * 2,
            clock=house.clock,
        )
        for host in ("a", "b")
    )
    for _ in range(3):
        first.round()
        second.round()
    assert begun == ["a"] * 6


def test_sealing_is_measured(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, what waits, and how many logs have a fault; nothing where nothing was done."""
    gauges = Gauges()
    monkeypatch.setattr(module, "metrics", gauges)
    faults = {"log": LedgerKeyError("x")}
    seals = Seals(SealRound(rows=3, logs=1, waiting=2, faults=dict(faults)), None)
    keeper = sealing(house, "a", seals)
    for _ in range(2):
        keeper.round()
        house.clock.pass_by(1)
    sealed = [call for call in gauges.calls if call[0] == "sealed"]
    assert sealed == [("sealed", (), {"rows": 3, "waiting": 2, "faults": 1})]


# --- going on -------------------------------------------------------------------------------------


class Stop:
    """An event that counts the waits, and is set after so many; time passes in each."""

    def __init__(
        self, house: House, rounds: int, each: Callable[[int], None] | None = None
    ) -> None:
        self.house, self.left, self.waits = house, rounds, 0
        self._each = each

    def is_set(self) -> bool:
        return self.waits >= self.left

    def wait(self, seconds: float) -> bool:
        self.waits += 1
        self.house.clock.pass_by(seconds)
        if self._each:
            self._each(self.waits)
        return self.is_set()


def test_keep_goes_on_until_it_is_told_to_stop_and_gives_back(house: House) -> None:
    """A round, a pause, a round; then the next keeper leads at once."""
    told: list[Round] = []
    house.keeper("a").keep(Stop(house, 5), told.append)  # type: ignore[arg-type]
    assert [did.leads for did in told] == [True] * 5
    assert not house.memory.is_led(ROLE)


def test_keep_that_was_told_before_it_began_does_nothing(house: House) -> None:
    """Not one round."""
    stop = threading.Event()
    stop.set()
    house.keeper("a").keep(stop, lambda did: pytest.fail("a round"))
    assert list(house.memory.rows()) == []


def test_an_outage_ends_no_keeper(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """One record for each outage, not for each round of it, and it goes on afterwards."""

    def weather(wait: int) -> None:
        house.memory.down = wait in range(2, 6) or wait in range(8, 10)

    told: list[Round] = []
    house.keeper("a").keep(Stop(house, 12, weather), told.append)  # type: ignore[arg-type]
    assert len(told) == 6
    assert [r.levelname for r in caplog.records] == ["ERROR"] * 2
    assert "the keeper waits for the memory" in caplog.text


def test_giving_back_in_an_outage_is_no_error(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease runs out by itself."""
    caplog.set_level(logging.WARNING, logger="audit")
    keeper = house.keeper("a")
    keeper.round()
    house.memory.down = True
    keeper.give_back()
    assert "runs out by itself" in caplog.text


# --- once -----------------------------------------------------------------------------------------


def test_reconcile_observes_for_the_patience_and_closes(house: House) -> None:
    """Once over: what is abandoned is closed, who lives is not, and nobody needs to lead."""
    house.memory.hold_lease("alive", 3600)
    for worker in ("gone", "alive", "gone"):
        house.memory.emit(started(make_identity(worker=worker)))
    began = house.clock.seconds
    sweep = house.keeper("a").reconcile(pause=house.clock.pass_by)
    assert (len(sweep.closed), sweep.running, sweep.suspects) == (2, 1, 0)
    assert 10 <= house.clock.seconds - began <= 13
    assert not house.memory.is_led(ROLE)


def test_reconcile_replays_first(house: House) -> None:
    """An ending that waits on this host is better than none."""
    identity = make_identity(worker="gone")
    house.memory.emit(started(identity))
    house.spool("a").keep(completed(identity, make_ending()))
    assert house.keeper("a").reconcile(pause=house.clock.pass_by).closed == []
    assert [row.kind for row in house.memory.rows()] == [STARTED, COMPLETED]


def test_reconcile_in_an_outage_is_an_error(house: House) -> None:
    """At once, and in the middle."""
    house.memory.down = True
    with pytest.raises(MemoryUnavailableError):
        house.keeper("a").reconcile(pause=house.clock.pass_by)
    house.memory.down = False

    def pause(seconds: float) -> None:
        house.clock.pass_by(seconds)
        house.memory.down = True

    with pytest.raises(MemoryUnavailableError):
        house.keeper("a").reconcile(pause=pause)
