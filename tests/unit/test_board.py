"""audit/board: the overview and the list, over a memory in this process."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from audit.board.line import LineKind
from audit.board.listing import listing
from audit.board.measures import BUCKETS, endings, percentile
from audit.board.overview import overview
from audit.board.standing import LedgerState, LogState
from audit.errors import MemoryUnavailableError
from audit.keeper import ROLE
from audit.memory.base import RowFilter
from audit.row import NIL_TENANT, AuditRow, Ending, Outcome, Reason, Refusal, timestamp
from audit.system_rows import audit_key_rotated
from audit.testing import FakeClock, InMemory
from tests.pages import ALL, OTHER, Sealed, seal
from tests.support import (
    HASH,
    TENANT,
    completed,
    make_ending,
    make_identity,
    refused,
    started,
)


class Clocked:
    """A memory and a clock; rows are written ``late`` seconds before they are stored."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.memory = InMemory(clock=self.clock, now=self.clock.now)

    def start(self, *, late: float = 0.0, **overrides: Any) -> Any:
        identity = make_identity(**overrides)
        self.memory.emit(started(identity, ts=self._ts(late)))
        return identity

    def end(
        self, identity: Any, reason: Reason = Reason.RETURNED, *, late: float = 0.0, ms: int = 12
    ) -> None:
        row = completed(identity, make_ending(reason), duration_ms=ms, ts=self._ts(late))
        self.memory.emit(row)

    def run(self, reason: Reason = Reason.RETURNED, *, ms: int = 12, **overrides: Any) -> Any:
        identity = self.start(**overrides)
        self.end(identity, reason, ms=ms)
        return identity

    def look(self, *, ledger: bool = False, **parts: Any) -> Any:
        return overview(self.memory, self.clock.now(), ledger=ledger, **parts)

    def _ts(self, late: float) -> str:
        return timestamp(self.clock.now() - timedelta(seconds=late))


@pytest.fixture
def host() -> Clocked:
    return Clocked()


def test_nothing_is_known_of_an_empty_memory(host: Clocked) -> None:
    """An overview of nothing is empty and complete, and no figure is made up."""
    seen = host.look()
    assert (seen.running, seen.running_total, seen.slowest, seen.failing) == ((), 0, (), ())
    assert (seen.emit_p50_ms, seen.emit_p95_ms, seen.refused, seen.damaged) == (None, None, (), 0)
    assert (seen.looked, seen.reached, seen.complete, seen.trimmed) == (0, None, True, False)
    assert (seen.picture.buckets, seen.keeper_leads) == ((), False)
    assert seen.ledger == LedgerState(configured=False)


def test_what_runs_is_shown_with_age_and_lease(host: Clocked) -> None:
    """Open invocations come oldest first, with their age, and whether their process lives."""
    host.start(worker="living")
    host.clock.pass_by(5)
    host.start(worker="gone", late=-60)
    host.start(worker="")
    host.run()
    host.memory.hold_lease("living", 60)
    host.clock.pass_by(2)
    seen = host.look()
    assert [(line.row.meta["worker"], line.age_seconds) for line in seen.running] == [
        ("living", 7.0),
        ("gone", 0.0),
        ("", 2.0),
    ]
    assert [line.has_lease for line in seen.running] == [True, False, None]
    assert seen.running_total == 3


def test_endings_stand_in_the_bucket_of_their_time(host: Clocked) -> None:
    """The picture has every ending once, by the store's time, and buckets without gaps."""
    host.run()
    host.clock.pass_by(130)
    host.run(Reason.RAISED)
    host.run(Reason.WORKER_LOST)
    host.clock.pass_by(60)
    host.run(Reason.HARD_TIME_LIMIT)
    picture = host.look().picture
    each = timedelta(seconds=picture.seconds_each)
    assert len(picture.buckets) <= BUCKETS
    begins = [bucket.begin for bucket in picture.buckets]
    assert {second - first for first, second in pairwise(begins)} == {each}
    assert begins[-1] <= host.clock.now() < begins[-1] + each
    counted = {o: sum(bucket.counts[o] for bucket in picture.buckets) for o in Outcome}
    assert counted == dict.fromkeys(Outcome, 1)
    assert picture.buckets[0].counts[Outcome.SUCCESS] == 1
    assert picture.buckets[-1].counts[Outcome.TIMEOUT] == 1


@pytest.mark.parametrize("span", [0, 1, 59, 60, 3599, 86_400, 30 * 86_400, 56 * 365 * 86_400])
def test_any_span_of_time_fits_the_picture(span: int) -> None:
    """However far back the look goes, there are no more than so many buckets."""
    clock = FakeClock(start=0.7)
    begin = clock.now()
    clock.pass_by(span)
    picture = endings([], begin, clock.now(), lambda row: begin)
    assert 1 <= len(picture.buckets) <= BUCKETS
    assert picture.buckets[0].begin <= begin
    assert picture.seconds_each < 2 * 86_400 or span > 30 * 86_400


def test_the_farthest_future_fits_the_picture() -> None:
    """An entry at the end of all time, as a forger may store it, ends no page."""
    clock = FakeClock()
    last = datetime.max.replace(tzinfo=clock.now().tzinfo)
    assert 1 <= len(endings([], last, clock.now(), lambda row: last).buckets) <= BUCKETS


def test_a_row_that_is_newer_than_now_is_counted(host: Clocked) -> None:
    """The clock goes on while a page is made: what came last is in the last bucket."""
    host.run()
    begin = host.clock.now()
    host.clock.pass_by(100)
    host.run()
    rows = host.memory.page(ALL).rows
    picture = endings(rows, begin, begin + timedelta(seconds=50), host.memory.stored_at)
    assert [sum(bucket.counts.values()) for bucket in picture.buckets][
        :: len(picture.buckets) - 1
    ] == [1, 1]


def test_skills_are_ranked(host: Clocked) -> None:
    """The slowest by p95, the failing by how often; a bound of a duration is no measure."""
    for number in range(100):
        host.run(skill_id="slow.one", ms=10 * (number + 1))
        host.run(Reason.RAISED if number < 7 else Reason.RETURNED, skill_id="fast.one", ms=1)
    lost = host.start(skill_id="lost.one")
    host.memory.emit(
        AuditRow(
            kind="skill.invoked_completed",
            ts=timestamp(host.clock.now()),
            payload=completed(lost, make_ending(Reason.ABANDONED)).payload,
            meta=lost.meta(reason="abandoned", duration="lower_bound"),
        )
    )
    seen = host.look()
    assert [line.skill_id for line in seen.slowest] == ["slow.one", "fast.one"]
    slow = seen.slowest[0]
    assert (slow.calls, slow.failed) == (100, 0)
    assert (slow.p50_ms, slow.p95_ms, slow.max_ms) == (500, 950, 1000)
    assert [(line.skill_id, line.failed) for line in seen.failing] == [
        ("fast.one", 7),
        ("lost.one", 1),
    ]


def test_emit_latency_is_the_stores_time_minus_the_rows(host: Clocked) -> None:
    """From what a row says until the store had it; clocks that differ are in it."""
    for late in (0.01, 0.02, -0.5):
        identity = host.start(late=late)
        host.end(identity, late=late)
    seen = host.look()
    assert seen.emit_p50_ms == pytest.approx(10.0)
    assert seen.emit_p95_ms == pytest.approx(20.0)


def test_refusals_are_counted_by_reason(host: Clocked) -> None:
    """Each reason with its count and its newest row, the most frequent first."""
    rows = [
        refused(make_identity(), Refusal.POISON),
        refused(make_identity(), Refusal.BAD_ARGUMENTS),
        refused(make_identity(), Refusal.BAD_ARGUMENTS),
    ]
    for row in rows:
        host.memory.emit(row)
    first, second = host.look().refused
    assert (first.reason, first.count, first.last) == ("bad_arguments", 2, rows[2])
    assert (second.reason, second.count) == ("poison", 1)


def test_a_look_is_bounded_and_says_so(host: Clocked) -> None:
    """No more entries than asked for are looked at, and what lies before is not claimed."""
    for _ in range(20):
        host.run()
    seen = host.look(look=10)
    assert (seen.looked, seen.complete) == (10, False)
    assert seen.slowest[0].calls == 5
    assert host.look(look=40).complete


def test_one_tenant_sees_its_own_alone(host: Clocked) -> None:
    """With a tenant, nothing of another is counted."""
    host.run(tenant_id=OTHER, skill_id="their.skill")
    host.start(tenant_id=OTHER)
    host.run()
    seen = host.look(tenant_id=TENANT)
    assert [line.skill_id for line in seen.slowest] == ["alerts.triage"]
    assert (seen.running_total, seen.looked) == (0, 2)


def test_the_keeper_is_seen(host: Clocked) -> None:
    """Whether a keeper leads is what the memory says."""
    host.memory.lead(ROLE, "somebody", 10)
    assert host.look().keeper_leads
    host.clock.pass_by(11)
    assert not host.look().keeper_leads


def test_the_ledger_is_as_far_as_its_checkpoint_says(host: Clocked) -> None:
    """Sealed is the checkpoint's size, waiting what was looked at behind the sealed position."""
    host.memory = Sealed(clock=host.clock, now=host.clock.now)
    for _ in range(5):
        host.run()
    (log,) = host.look(ledger=True).ledger.logs
    assert log == LogState(tenant_id=TENANT, sealed=0, waiting=10)
    seal(host.memory, 7)
    host.memory.sealed_to = host.memory.entries(TENANT, None, 7)[-1].position
    state = host.look().ledger
    assert (state.configured, state.tenants) == (True, 1)
    assert state.logs == (LogState(tenant_id=TENANT, sealed=7, waiting=3),)
    assert host.look(look=2).ledger.logs[0] == LogState(
        tenant_id=TENANT, sealed=7, waiting=2, more=True
    )
    host.memory.sealed_to = None
    assert host.look().ledger.logs == (LogState(tenant_id=TENANT, sealed=7, waiting=None),)


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank, as the bench has it."""
    assert percentile([], 50) is None
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([3, 1, 2], 95) == 3
    assert percentile([7], 1) == 7


def test_a_pair_is_one_line(host: Clocked) -> None:
    """Started and completed are one line, at the place of the newest; the rest stand alone."""
    closed = host.start()
    running = host.start()
    host.end(closed, Reason.RAISED)
    host.memory.emit(completed(closed, Ending(reason=Reason.RETURNED, result_hash=HASH)))
    host.memory.emit(refused(make_identity(), Refusal.POISON))
    host.memory.emit(
        audit_key_rotated("01SYSTEM", new_key="k", old_key=None, ts=timestamp(host.clock.now()))
    )
    lines = listing(host.memory, ALL).lines
    assert [line.kind for line in lines] == [
        LineKind.SYSTEM,
        LineKind.REFUSED,
        LineKind.LATE,
        LineKind.CLOSED,
        LineKind.STARTED,
    ]
    assert lines[3].request_id == closed.request_id
    assert lines[3].started is not None
    assert (lines[3].outcome, lines[3].reason) == (Outcome.ERROR, "raised")
    assert (lines[3].caller_persona, lines[3].duration_ms) == ("cuo-cpo@0.4.1", 12)
    assert lines[4].request_id == running.request_id
    assert lines[0].tenant_id == NIL_TENANT
    assert lines[1].reason == "poison"


def test_a_list_goes_on_from_its_cursor(host: Clocked) -> None:
    """Pages of a filtered list have every ending once."""
    wanted = RowFilter(outcome="panic")
    lost = [host.run(Reason.WORKER_LOST) for _ in range(7) if host.run()]
    found, cursor = [], None
    while True:
        page = listing(host.memory, wanted, cursor=cursor, most=2, look=9)
        found += [line.request_id for line in page.lines]
        assert page.looked <= 9
        if (cursor := page.next) is None:
            break
    assert found == [identity.request_id for identity in reversed(lost)]


def test_a_line_says_nothing_that_is_not_text(host: Clocked) -> None:
    """Whatever somebody stored in the place of a text or a number reads as nothing."""
    identity = make_identity()
    row = completed(identity)
    strange = {**row.payload, "outcome": ["x"], "duration_ms": True, "skill_id": 7}
    host.memory.emit(started(identity))
    host.memory.emit(AuditRow(kind=row.kind, ts=row.ts, payload=strange, meta={"reason": 7}))
    (line,) = listing(host.memory, RowFilter(kind=row.kind)).lines
    assert (line.outcome, line.duration_ms, line.skill_id, line.reason) == (None,) * 4
    assert (line.task_id, line.attempt, line.redelivered) == (None, None, False)
    assert host.look().slowest == ()


def test_a_memory_that_is_down_is_no_empty_board(host: Clocked) -> None:
    """Whoever shows a page learns that the memory did not answer."""
    host.memory.down = True
    with pytest.raises(MemoryUnavailableError):
        host.look()
    with pytest.raises(MemoryUnavailableError):
        listing(host.memory, ALL)


def test_older_overviews_go_on_where_the_newer_one_ended(host: Clocked) -> None:
    """Window after window, each entry is counted once, and the picture ends with its window."""
    for _ in range(5):
        host.run()
        host.clock.pass_by(100)
    views = [host.look(look=4)]
    while views[-1].next:
        views.append(host.look(look=4, cursor=views[-1].next))
    assert [view.looked for view in views] == [4, 4, 2]
    assert [view.complete for view in views] == [False, False, True]
    ended = [sum(sum(b.counts.values()) for b in view.picture.buckets) for view in views]
    assert ended == [2, 2, 1]
    each = timedelta(seconds=views[1].picture.seconds_each)
    newest = host.clock.now() - timedelta(seconds=300)
    assert views[1].picture.buckets[-1].begin <= newest < views[1].picture.buckets[-1].begin + each
    with pytest.raises(ValueError, match="cursor"):
        host.look(cursor="nonsense")
