"""audit/invocation.py: one state machine, whose rows survive whatever strikes while they go out.

The memory here is a fake with paired faults (``tests/fakes.py``): an emit that fails, or that a
signal interrupts, before the row was stored, or after.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from audit import alarms as alarms_module
from audit import invocation as module
from audit import recorder as recorder_module
from audit import spool as spool_module
from audit.breaker import Breaker
from audit.errors import (
    AuditEmitFailed,
    AuditMemoryError,
    MemoryUnsuitableError,
    RowRefusedError,
)
from audit.invocation import INTERRUPTIONS, TRANSITIONS, Invocation, State, new_request_id
from audit.memory import AuditMemory
from audit.recorder import Recorder
from audit.row import (
    COMPLETED,
    REFUSED,
    STARTED,
    AuditRow,
    Ending,
    Outcome,
    Reason,
    Refusal,
)
from audit.spool import Spool
from audit.testing import FakeClock
from tests import fakes, support
from tests.fakes import DOUBT, DOWN, FakeMemory, Strike
from tests.support import HASH, make_ending, make_identity, validate_row

SOFT = SoftTimeLimitExceeded("soft")
LEAVE = SystemExit("terminated")
UNSUITABLE = MemoryUnsuitableError("the memory server may evict rows")

RETURNED = make_ending()
RAISED = make_ending(Reason.RAISED, "ValueError: no")


class Metrics:
    """Stands in for :mod:`audit.metrics`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values: self.calls.append((name, *values))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [values for called, *values in self.calls if called == name]


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    metrics = Metrics()
    for user in (module, alarms_module):
        monkeypatch.setattr(user, "metrics", metrics)
    return metrics


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="audit")
    return caplog


def invocation(
    memory: AuditMemory, clock: FakeClock | None = None, spool: Spool | None = None
) -> Invocation:
    moment = datetime(2026, 11, 29, 21, 45, 38, 123456, tzinfo=UTC)
    # No breaker between: each emit is to meet the fault that the test has for it.
    recorder = Recorder(memory, spool, Breaker(cooldown=0))
    return Invocation(make_identity(), recorder, clock=clock or FakeClock(), now=lambda: moment)


def started(
    memory: AuditMemory, clock: FakeClock | None = None, spool: Spool | None = None
) -> Invocation:
    made = invocation(memory, clock, spool)
    made.start(HASH)
    return made


def severities(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, getattr(r, "severity", "")) for r in log.records]


# --- the table of transitions ---------------------------------------------------------------------

#: What the specification allows, written down a second time: 8 x 8 pairs, these and no other.
ALLOWED = {
    ("received", "started"),
    ("received", "not started"),
    ("received", "refused"),
    ("started", "running"),
    ("started", "closed"),
    ("started", "spooled"),
    ("started", "unrecorded"),
    ("running", "closed"),
    ("running", "spooled"),
    ("running", "unrecorded"),
}

ACTIONS: dict[str, Callable[[Invocation], None]] = {
    "start": lambda made: made.start(HASH),
    "refuse": lambda made: made.refuse(Refusal.BAD_ARGUMENTS, "does not fit"),
    "begin": lambda made: made.begin(),
    "close": lambda made: made.close(RETURNED),
}

#: Which actions are legal where; closing what is not open is no error and does nothing.
LEGAL = {
    "received": {"start", "refuse", "close"},
    "refused": {"close"},
    "not started": {"close"},
    "started": {"begin", "close"},
    "running": {"close"},
    "closed": {"close"},
    "spooled": {"close"},
    "unrecorded": {"close"},
}


def in_state(state: State, folder: Path) -> tuple[Invocation, FakeMemory]:
    """An invocation that got where it is by its own methods."""
    memory = FakeMemory()
    made = invocation(memory, spool=Spool(folder, "m") if state is State.SPOOLED else None)
    if state is State.REFUSED:
        made.refuse(Refusal.MISSING_CONTEXT, "nobody called")
    elif state is State.NOT_STARTED:
        memory.plan.append((DOWN, False))
        with pytest.raises(AuditEmitFailed):
            made.start(HASH)
    elif state is not State.RECEIVED:
        made.start(HASH)
        if state is not State.STARTED:
            made.begin()
        if state in (State.SPOOLED, State.UNRECORDED):
            memory.plan.append((DOWN, False))
        if state not in (State.STARTED, State.RUNNING):
            made.close(RETURNED)
    assert made.state is state
    return made, memory


@pytest.mark.parametrize(("old", "new"), list(product(State, State)))
def test_the_table_has_the_transitions_of_the_specification(
    old: State, new: State, tmp_path: Path
) -> None:
    """Of the 64 pairs of states, ten are steps; each state is reached by methods alone."""
    assert (new in TRANSITIONS[old]) == ((old.value, new.value) in ALLOWED)
    made, _ = in_state(old, tmp_path)
    if (old.value, new.value) in ALLOWED:
        made._move(new)
        assert made.state is new
    else:
        with pytest.raises(AssertionError, match=f"never goes from {old} to {new}"):
            made._move(new)
        assert made.state is old


@pytest.mark.parametrize(("state", "action"), list(product(State, ACTIONS)))
def test_an_action_out_of_turn_changes_nothing(state: State, action: str, tmp_path: Path) -> None:
    """An illegal action is an error in our own code: nothing is emitted and the state stays."""
    made, memory = in_state(state, tmp_path)
    emits, open_before = memory.emits, made.open
    if action in LEGAL[state.value]:
        ACTIONS[action](made)
        assert (memory.emits > emits) == (action != "begin" and (action != "close" or open_before))
    else:
        with pytest.raises(AssertionError, match="never goes from"):
            ACTIONS[action](made)
        assert (made.state, memory.emits) == (state, emits)


def test_open_is_started_or_running(tmp_path: Path) -> None:
    """Only an invocation whose started row waits for its completed one is open."""
    still_open = {state for state in State if in_state(state, tmp_path)[0].open}
    assert still_open == {State.STARTED, State.RUNNING}


# --- start ----------------------------------------------------------------------------------------


def test_start_returns_when_the_row_is_durable() -> None:
    """One emit, one started row, with the hash it was given."""
    memory = FakeMemory()
    made = started(memory)
    (row,) = memory.stored
    assert (row.kind, row.payload["args_hash"], made.state) == (STARTED, HASH, State.STARTED)
    assert row.ts == "2026-11-29T21:45:38.123456Z"


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "but stored"])
@pytest.mark.parametrize("error", [DOWN, UNSUITABLE], ids=["unavailable", "unsuitable"])
def test_a_failed_start_can_never_run(
    error: AuditMemoryError, stored: bool, metrics: Metrics, log: pytest.LogCaptureFixture
) -> None:
    """AuditEmitFailed at stage start, 503; one sev-1 record, one count; nothing closes it."""
    memory = FakeMemory((error, stored))
    made = invocation(memory)
    with pytest.raises(AuditEmitFailed) as caught:
        made.start(HASH)
    assert (caught.value.stage, caught.value.http_status) == ("start", 503)
    assert caught.value.reason == str(error)
    assert caught.value.__cause__ is error
    assert made.state is State.NOT_STARTED
    assert severities(log) == [("CRITICAL", "sev-1")]
    assert made.identity.request_id in log.text
    assert made.identity.skill_id in log.text
    assert metrics.of("emit_failed") == [["start"]]
    with pytest.raises(AssertionError):
        made.begin()
    made.close(RETURNED)
    assert memory.emits == 1
    assert metrics.of("skill_invoked") == []


def test_a_second_started_row_is_a_failed_start(log: pytest.LogCaptureFixture) -> None:
    """A memory that refuses the row (a forged request_id, a tombstone) stops the invocation."""
    memory = FakeMemory()
    identity = make_identity()
    recorder = Recorder(memory)
    Invocation(identity, recorder, now=lambda: datetime(2026, 1, 1, tzinfo=UTC)).start(HASH)
    with pytest.raises(AuditEmitFailed, match="a different started row is there"):
        Invocation(identity, recorder, now=lambda: datetime(2026, 1, 2, tzinfo=UTC)).start(HASH)
    assert memory.kinds() == [STARTED]
    assert severities(log) == [("CRITICAL", "sev-1")]


@pytest.mark.parametrize("landed", [False, True], ids=["lost", "landed"])
def test_a_started_row_in_doubt_is_closed_or_barred(landed: bool, tmp_path: Path) -> None:
    """What may have landed waits in the spool as not dispatched; the replay settles it for good."""
    memory, spool = FakeMemory((DOUBT, landed)), Spool(tmp_path, "m")
    made = invocation(memory, spool=spool)
    with pytest.raises(AuditEmitFailed):
        made.start(HASH)
    assert (made.state, spool.usage().rows) == (State.NOT_STARTED, 1)
    spool.replay(memory)
    assert memory.kinds() == ([STARTED, COMPLETED] if landed else [])
    if landed:
        assert memory.stored[1].meta["reason"] == Reason.NOT_DISPATCHED
    else:
        with pytest.raises(RowRefusedError, match="not dispatched"):
            memory.emit(support.started(made.identity))


def test_a_started_row_that_surely_did_not_land_leaves_nothing_behind(tmp_path: Path) -> None:
    """There is nothing to close, so nothing waits."""
    spool = Spool(tmp_path, "m")
    with pytest.raises(AuditEmitFailed):
        started(FakeMemory((DOWN, False)), spool=spool)
    assert spool.empty


# --- a message that is started again --------------------------------------------------------------


def replay(memory: FakeMemory, *faults: Any, **more: Any) -> Invocation:
    """An invocation whose message was started before; ``faults`` meet its own emits."""
    invocation(memory).start(HASH, once_token="message", once_seconds=60)
    memory.plan.extend(faults)
    return invocation(memory, **more)


def marks(memory: FakeMemory, made: Invocation) -> list[bool]:
    request_id = made.identity.request_id
    return [row.meta["redelivered"] for row in memory.rows(request_id=request_id)]


def test_a_replay_is_marked_in_both_rows() -> None:
    """The first start under a token is not, the second is, one without a token is not."""
    memory = FakeMemory()
    for once, mark in (("message", False), ("message", True), (None, False)):
        made = invocation(memory)
        made.start(HASH, once_token=once, once_seconds=60)
        assert made.identity.redelivered is mark
        made.close(RETURNED)
        assert marks(memory, made) == [mark, mark]


def test_a_redelivery_leaves_its_token() -> None:
    """What the broker marked stays marked, and the copy that comes after it is found out."""
    memory = FakeMemory()
    first = Invocation(make_identity(redelivered=True), Recorder(memory))
    for made in (first, invocation(memory)):
        made.start(HASH, once_token="message", once_seconds=60)
        made.close(RETURNED)
        assert marks(memory, made) == [True, True]


@pytest.mark.parametrize("stored", [False, True], ids=["before storing", "after storing"])
@pytest.mark.parametrize("again", [False, True], ids=["first", "replay"])
def test_an_interrupted_start_is_no_replay_of_itself(stored: bool, again: bool) -> None:
    """Done again it learns which form stands, and closes likewise."""
    memory = FakeMemory()
    faults = [(LEAVE, stored)] * (INTERRUPTIONS - 1)
    made = replay(memory, *faults) if again else invocation(FakeMemory(*faults))
    with pytest.raises(SystemExit):
        made.start(HASH, once_token="message", once_seconds=60)
    made.close(RETURNED)
    found = memory if again else made._recorder.memory
    assert marks(found, made) == [again, again]


def test_wherever_a_signal_strikes_a_start_both_rows_agree() -> None:
    """At each line of a replay's start: it is open and marked, or never starts."""
    for n in itertools.count():
        memory = FakeMemory()
        made = replay(memory)
        with (
            contextlib.suppress(SoftTimeLimitExceeded),
            Strike(SOFT, n, module, recorder_module, alarms_module) as strike,
        ):
            made.start(HASH, once_token="message", once_seconds=60)
        if not strike.struck:
            break
        made.close(RETURNED)
        assert marks(memory, made) in ([], [True, True]), strike.place
    assert n > 20


@pytest.mark.parametrize("error", [DOUBT, LEAVE], ids=["doubt", "interrupted too often"])
def test_a_replay_in_doubt_is_closed_with_its_mark(error: BaseException, tmp_path: Path) -> None:
    """Nobody here knows which form landed; the memory does when the spool is replayed."""
    memory, spool = FakeMemory(), Spool(tmp_path, "m")
    made = replay(memory, *[(error, True)] * INTERRUPTIONS, spool=spool)
    with pytest.raises((AuditEmitFailed, SystemExit)):
        made.start(HASH, once_token="message", once_seconds=60)
    assert made.state is State.NOT_STARTED
    memory.plan.clear()
    spool.replay(memory)
    assert marks(memory, made) == [True, True]
    (end,) = memory.rows(kind=COMPLETED)
    assert end.meta["reason"] == Reason.NOT_DISPATCHED


def test_a_replay_whose_end_is_spooled_says_so_there(tmp_path: Path) -> None:
    """The row in the spool has the mark already, and is the very one that gets stored."""
    memory, spool = FakeMemory(), Spool(tmp_path, "m")
    made = replay(memory, spool=spool)
    made.start(HASH, once_token="message", once_seconds=60)
    memory.plan.append((DOWN, False))
    made.close(RETURNED)
    (path,) = spool.directory.glob("*.row")
    waiting = path.read_bytes()
    spool.replay(memory)
    (end,) = memory.rows(kind=COMPLETED)
    assert end.to_bytes() == waiting
    assert marks(memory, made) == [True, True]


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_token_without_its_seconds_starts_nothing(seconds: int) -> None:
    """An error in our own code: nothing is emitted, and the invocation can still start."""
    memory = FakeMemory()
    made = invocation(memory)
    with pytest.raises(ValueError, match="remembered"):
        made.start(HASH, once_token="message", once_seconds=seconds)
    assert (made.state, memory.emits) == (State.RECEIVED, 0)


# --- signals that strike inside an emit -----------------------------------------------------------

FEWER = range(1, INTERRUPTIONS)


@pytest.mark.parametrize("stored", [False, True], ids=["before storing", "after storing"])
@pytest.mark.parametrize("times", FEWER)
@pytest.mark.parametrize("interrupt", [SOFT, LEAVE], ids=["soft limit", "exit"])
def test_a_start_that_is_interrupted_is_done_again(
    interrupt: BaseException, times: int, stored: bool
) -> None:
    """The row is on record once, the interruption is raised then, and the invocation is open."""
    memory = FakeMemory(*[(interrupt, stored)] * times)
    made = invocation(memory)
    with pytest.raises(type(interrupt)) as caught:
        made.start(HASH)
    assert caught.value is interrupt
    assert (made.state, memory.kinds()) == (State.STARTED, [STARTED])
    assert memory.emits == times + 1
    made.close(make_ending(Reason.SOFT_TIME_LIMIT))
    assert (made.state, memory.kinds()) == (State.CLOSED, [STARTED, COMPLETED])


@pytest.mark.parametrize("stored", [False, True], ids=["before storing", "after storing"])
def test_a_start_that_is_interrupted_too_often_has_failed(
    stored: bool, log: pytest.LogCaptureFixture, metrics: Metrics
) -> None:
    """The body cannot run, and it is reported like any other failed start."""
    memory = FakeMemory(*[(SOFT, stored)] * INTERRUPTIONS)
    made = invocation(memory)
    with pytest.raises(AuditEmitFailed, match="interrupted 3 times, by SoftTimeLimitExceeded"):
        made.start(HASH)
    assert (made.state, memory.emits) == (State.NOT_STARTED, INTERRUPTIONS)
    assert severities(log) == [("CRITICAL", "sev-1")]
    assert metrics.of("emit_failed") == [["start"]]


@pytest.mark.parametrize("fault", [(DOWN, False), (LEAVE, False)], ids=["down", "again"])
def test_an_exit_is_not_lost_in_a_failed_start(fault: tuple[BaseException, bool]) -> None:
    """Asked to exit while the memory fails: the failure is on record, then the process exits."""
    memory = FakeMemory((LEAVE, False), (SOFT, False), fault)
    made = invocation(memory)
    with pytest.raises(SystemExit) as caught:
        made.start(HASH)
    assert caught.value is LEAVE
    assert made.state is State.NOT_STARTED


@pytest.mark.parametrize("stored", [False, True], ids=["before storing", "after storing"])
@pytest.mark.parametrize("times", FEWER)
def test_a_soft_limit_inside_the_last_emit_stops_nothing(times: int, stored: bool) -> None:
    """The body is over, so the interruption is dropped once the completed row is on record."""
    memory = FakeMemory(None, *[(SOFT, stored)] * times)
    made = started(memory)
    made.begin()
    made.close(RETURNED)
    assert (made.state, memory.kinds()) == (State.CLOSED, [STARTED, COMPLETED])
    assert memory.emits == 2 + times


@pytest.mark.parametrize("stored", [False, True], ids=["before storing", "after storing"])
@pytest.mark.parametrize("order", [(LEAVE,), (LEAVE, SOFT), (SOFT, LEAVE)], ids=str)
def test_an_exit_inside_the_last_emit_is_raised_after_it(
    order: tuple[BaseException, ...], stored: bool, metrics: Metrics
) -> None:
    """A process that is asked to exit does, with the row on record and counted."""
    memory = FakeMemory(None, *[(interrupt, stored) for interrupt in order])
    made = started(memory)
    made.begin()
    with pytest.raises(SystemExit) as caught:
        made.close(RETURNED)
    assert caught.value is LEAVE
    assert (made.state, memory.kinds()) == (State.CLOSED, [STARTED, COMPLETED])
    assert len(metrics.of("skill_invoked")) == 1


def test_an_exit_is_not_lost_when_the_memory_fails_at_the_end(
    log: pytest.LogCaptureFixture,
) -> None:
    """The whole row is in the log before the process exits."""
    memory = FakeMemory(None, (LEAVE, False), (DOWN, False))
    made = started(memory)
    with pytest.raises(SystemExit):
        made.close(RETURNED)
    assert made.state is State.UNRECORDED
    assert severities(log) == [("CRITICAL", "sev-1")]


def test_an_end_that_is_interrupted_too_often_is_reported_whole(
    log: pytest.LogCaptureFixture,
) -> None:
    """What the memory never confirmed is in the log."""
    memory = FakeMemory(None, *[(SOFT, False)] * INTERRUPTIONS)
    made = started(memory)
    made.close(RETURNED)
    assert made.state is State.UNRECORDED
    assert '"kind":"skill.invoked_completed"' in log.text


def test_a_process_that_the_body_forked_closes_nothing() -> None:
    """It leaves through the same frames as its parent, and says nothing about its invocation."""
    made = started(FakeMemory())
    made.begin()
    pid = os.fork()
    if pid == 0:
        made.close(make_ending())
        os._exit(0 if made.state is State.RUNNING else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert made.open


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored"])
def test_an_end_that_is_interrupted_too_often_waits_in_the_spool(
    stored: bool, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """Soft limits and an exit strike inside the last emit, one after the other: nothing is lost."""
    memory = FakeMemory(None, (SOFT, False), (SOFT, stored), (LEAVE, False))
    spool = Spool(tmp_path, "memory")
    one = Invocation(make_identity(), Recorder(memory, spool, Breaker()))
    one.start(HASH)
    one.begin()
    with pytest.raises(type(LEAVE)):
        one.close(make_ending())
    assert one.state is State.SPOOLED
    spool.replay(memory)
    assert memory.kinds() == [STARTED, COMPLETED]
    assert "the row waits in the spool" in log.text


def test_an_error_that_no_memory_may_raise_counts_as_a_failure(
    log: pytest.LogCaptureFixture,
) -> None:
    """A bug in a memory: the gate stays shut at the start, and the row is in the log at the end."""
    memory = FakeMemory(*[(KeyError("bug"), False)] * INTERRUPTIONS)
    with pytest.raises(AuditEmitFailed, match="by KeyError"):
        invocation(memory).start(HASH)
    made = started(memory)
    memory.plan.extend([(KeyError("bug"), False)] * INTERRUPTIONS)
    made.close(RETURNED)
    assert made.state is State.UNRECORDED
    assert severities(log) == [("CRITICAL", "sev-1")] * 2


def life(memory: FakeMemory, spool: Spool | None) -> None:
    """What the host does with an invocation: start, body, end, and the net for what failed."""
    made = invocation(memory, spool=spool)
    try:
        made.start(HASH)
        try:
            made.begin()
            made.ended()
        except BaseException as error:
            made.close(make_ending(Reason.RAISED, str(error)))
            raise
        made.close(RETURNED)
    except BaseException as error:
        made.close(make_ending(Reason.SOFT_TIME_LIMIT, str(error)))
        raise


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage traces already")
@pytest.mark.parametrize("error", [SOFT, LEAVE], ids=["soft limit", "exit"])
@pytest.mark.parametrize("lost", ["", COMPLETED], ids=["memory up", "memory down at the end"])
def test_a_signal_at_any_line_leaves_no_invocation_half_recorded(
    error: BaseException, lost: str, log: pytest.LogCaptureFixture
) -> None:
    """Wherever it strikes, a started row gets its completed one, or the log has it."""
    recorded, reported = 0, 0
    for n in range(10_000):
        log.clear()
        memory = FakeMemory(lost=lost)
        modules = (module, recorder_module, alarms_module)
        with Strike(error, n, *modules) as strike, contextlib.suppress(type(error)):
            life(memory, None)
        if (kinds := memory.kinds()) == [STARTED]:
            assert '"kind":"skill.invoked_completed"' in log.text, f"line number {n}"
            reported += 1
        else:
            assert kinds in ([], [STARTED, COMPLETED])
            recorded += len(kinds) == 2
        if not strike.struck:
            break
    assert (reported if lost else recorded) > 40


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage traces already")
@pytest.mark.parametrize("error", [SOFT, LEAVE], ids=["soft limit", "exit"])
def test_a_signal_at_any_line_loses_no_ending_to_an_outage(
    error: BaseException, tmp_path: Path
) -> None:
    """With the memory down at the end, the spool's replay completes whatever was started, once."""
    for n in range(10_000):
        memory, spool = FakeMemory(lost=COMPLETED), Spool(tmp_path / str(n), "m")
        modules = (module, recorder_module, spool_module, alarms_module)
        with Strike(error, n, *modules) as strike, contextlib.suppress(type(error)):
            life(memory, spool)
        memory.lost = ""
        spool.replay(memory)
        assert memory.kinds() in ([], [STARTED, COMPLETED]), strike.place
        if not strike.struck:
            break
    assert n > 60


# --- close ----------------------------------------------------------------------------------------


def test_the_first_close_decides() -> None:
    """Later endings change nothing and emit nothing."""
    memory = FakeMemory()
    made = started(memory)
    made.begin()
    made.close(RAISED)
    made.close(RETURNED)
    assert [row.payload.get("outcome") for row in memory.stored] == [None, "error"]
    assert memory.emits == 2


def test_a_close_that_an_error_cut_short_is_done_again_with_the_same_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The net closes again with another ending: the first one's row goes out, byte for byte."""
    memory = FakeMemory()
    made = started(memory)
    made.begin()
    sent: list[bytes] = []
    complete = made._complete

    def cut_short(row: AuditRow, *result: Any) -> State:
        sent.append(row.to_bytes())
        if len(sent) == 1:
            raise SOFT
        return complete(row, *result)

    put = made._put
    monkeypatch.setattr(made, "_put", lambda row, *_: cut_short(row))
    with pytest.raises(SoftTimeLimitExceeded):
        made.close(RETURNED)
    assert made.open
    monkeypatch.setattr(made, "_put", put)
    monkeypatch.setattr(made, "_complete", cut_short)
    made.close(make_ending(Reason.SOFT_TIME_LIMIT))
    assert sent[0] == sent[1]
    assert memory.stored[1].payload["outcome"] == "success"


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "but stored"])
def test_an_unrecorded_ending_is_in_the_log_as_a_whole(
    stored: bool, log: pytest.LogCaptureFixture, metrics: Metrics
) -> None:
    """close does not raise; one sev-1 record has the row, canonical, in text and in a field."""
    memory = FakeMemory(None, (DOWN, stored))
    made = started(memory)
    made.begin()
    made.close(RAISED)
    assert made.state is State.UNRECORDED
    (record,) = log.records
    assert (record.levelname, record.severity) == ("CRITICAL", "sev-1")
    row = AuditRow.from_bytes(record.audit_row.encode())
    validate_row(row)
    assert row.kind == COMPLETED
    assert row.payload["request_id"] == made.identity.request_id
    assert row.payload["error_message"] == "ValueError: no"
    assert record.audit_row in record.getMessage()
    assert metrics.of("emit_failed") == [["completed"]]
    assert metrics.of("skill_invoked") == [[made.identity.skill_id, "error", 0]]


def test_an_ending_that_the_memory_does_not_take_is_spooled(
    tmp_path: Path, log: pytest.LogCaptureFixture, metrics: Metrics
) -> None:
    """close returns with the row on this host's disk: one sev-1 record, one count, no row lost."""
    memory, spool = FakeMemory(None, (DOWN, False)), Spool(tmp_path, "m")
    made = started(memory, spool=spool)
    made.begin()
    made.close(RETURNED)
    assert (made.state, spool.usage().rows) == (State.SPOOLED, 1)
    assert severities(log) == [("CRITICAL", "sev-1")]
    assert made.identity.request_id in log.text
    assert metrics.of("emit_failed") == [["completed"]]
    assert len(metrics.of("skill_invoked")) == 1
    spool.replay(memory)
    assert memory.kinds() == [STARTED, COMPLETED]


def test_an_ending_that_no_disk_takes_either_is_in_the_log_as_a_whole(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """Memory down and spool broken: close does not raise, and the log record is the row."""
    (tmp_path / "file").touch()
    memory = FakeMemory(None, (DOWN, False))
    made = started(memory, spool=Spool(tmp_path / "file", "m"))
    made.close(RETURNED)
    assert made.state is State.UNRECORDED
    (record,) = log.records
    assert AuditRow.from_bytes(record.audit_row.encode()).request_id == made.identity.request_id


def test_a_refused_completed_row_is_sev_1(log: pytest.LogCaptureFixture) -> None:
    """A memory that has no started row (pruned, replaced) loses no ending silently."""
    memory = FakeMemory()
    made = started(memory)
    memory._requests.clear()
    made.close(RETURNED)
    assert made.state is State.UNRECORDED
    assert "no started row" in log.text
    assert severities(log) == [("CRITICAL", "sev-1")]


def test_a_late_completion_is_no_failure(log: pytest.LogCaptureFixture) -> None:
    """Another process closed first: its row stands, this one is told of."""
    memory = FakeMemory()
    made = started(memory)
    rival = Invocation(made.identity, Recorder(memory))
    rival.start = lambda *_: None  # type: ignore[method-assign]
    rival.state = State.STARTED
    rival.close(RAISED)
    made.close(RETURNED)
    assert made.state is State.CLOSED
    assert (made.late, rival.late) == (True, False)
    assert severities(log) == [("WARNING", "")]
    assert made.identity.request_id in log.text


@pytest.mark.parametrize("reason", [Reason.RETURNED, Reason.RETURNED_AFTER_SOFT_LIMIT])
def test_a_success_that_returned_without_a_hash_is_sev_1(
    reason: Reason, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recorded all the same (section 10, number 13)."""
    monkeypatch.setattr(fakes, "validate_row", lambda row: None)
    memory = FakeMemory()
    made = started(memory)
    made.close(Ending(reason=reason, result_hash=""))
    assert memory.kinds() == [STARTED, COMPLETED]
    assert severities(log) == [("CRITICAL", "sev-1")]
    assert made.identity.request_id in log.text


def test_an_ending_without_result_needs_no_hash(log: pytest.LogCaptureFixture) -> None:
    """Ignored and failed endings have none, and nobody is alarmed."""
    for reason in Reason:
        ending = make_ending(reason)
        if ending.outcome is not Outcome.SUCCESS or reason is Reason.IGNORED:
            started(FakeMemory()).close(ending)
    assert log.records == []


# --- the clock ------------------------------------------------------------------------------------


def duration(memory: FakeMemory) -> int:
    return int(memory.stored[1].payload["duration_ms"])


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0.0, 0), (0.0004, 0), (0.0006, 1), (1.2344, 1234), (90000.0, 90_000_000)],
)
def test_the_duration_is_the_body_and_nothing_else(
    seconds: float, milliseconds: int, clock: FakeClock
) -> None:
    """What lies before begin() and after ended() does not count."""
    memory = FakeMemory()
    made = started(memory, clock)
    clock.pass_by(7)
    made.begin()
    clock.pass_by(seconds)
    made.ended()
    clock.pass_by(11)
    made.ended()
    made.close(RETURNED)
    assert duration(memory) == milliseconds


def test_the_duration_of_a_body_that_never_began_runs_from_its_started_row(
    clock: FakeClock,
) -> None:
    """A soft limit between the started row and the body."""
    memory = FakeMemory()
    made = started(memory, clock)
    clock.pass_by(0.25)
    made.close(make_ending(Reason.SOFT_TIME_LIMIT))
    assert duration(memory) == 250


@pytest.mark.parametrize("back", [0.001, 5.0, 1e9])
def test_a_negative_duration_is_clamped(
    back: float, clock: FakeClock, log: pytest.LogCaptureFixture
) -> None:
    """A clock that goes back gives 0 and a sev-3 record (section 10, number 14)."""
    memory = FakeMemory()
    made = started(memory, clock)
    made.begin()
    clock.pass_by(-back)
    made.close(RETURNED)
    assert duration(memory) == 0
    assert severities(log) == [("ERROR", "sev-3")]
    assert made.identity.request_id in log.text


def test_every_emit_is_timed_failed_or_not(metrics: Metrics) -> None:
    """Each try counts by itself, in milliseconds, at its stage."""
    clock = FakeClock(step=0.004)
    memory = FakeMemory((SOFT, False), None, (DOWN, False))
    made = invocation(memory, clock)
    with pytest.raises(SoftTimeLimitExceeded):
        made.start(HASH)
    made.close(RETURNED)
    assert [(stage, round(took, 3)) for stage, took in metrics.of("emit_took")] == [
        ("start", 4.0),
        ("start", 4.0),
        ("completed", 4.0),
    ]


@pytest.mark.parametrize("reason", list(Reason))
def test_an_ending_is_counted_by_skill_and_outcome(
    reason: Reason, metrics: Metrics, clock: FakeClock
) -> None:
    """skill_invoked_total goes up once an ending, with the duration beside it."""
    made = started(FakeMemory(), clock)
    made.begin()
    clock.pass_by(0.5)
    for _ in range(2):
        made.close(make_ending(reason))
    assert metrics.of("skill_invoked") == [[made.identity.skill_id, reason.outcome.value, 500]]
    assert metrics.of("emit_failed") == []


# --- refuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_refusal_is_a_row_a_count_and_a_record(
    refusal: Refusal, metrics: Metrics, log: pytest.LogCaptureFixture
) -> None:
    """An invocation that was not allowed to start is visible in all three."""
    memory = FakeMemory()
    made = invocation(memory)
    made.refuse(refusal, "because of $.x")
    (row,) = memory.stored
    assert (row.kind, row.payload["reason"]) == (REFUSED, refusal.value)
    assert made.state is State.REFUSED
    assert metrics.of("skill_refused") == [[made.identity.skill_id, refusal.value]]
    assert severities(log) == [("WARNING", "sev-3")]
    assert "because of $.x" in log.text


@pytest.mark.parametrize("fault", [(DOWN, False), (DOWN, True), (UNSUITABLE, False)])
def test_a_refusal_that_is_not_recorded_is_a_refusal(
    fault: tuple[BaseException, bool], metrics: Metrics, log: pytest.LogCaptureFixture
) -> None:
    """With the memory down the invocation is refused all the same, and the lost row is sev-1."""
    made = invocation(FakeMemory(fault))
    made.refuse(Refusal.MISSING_CONTEXT, "nobody called")
    assert made.state is State.REFUSED
    assert severities(log) == [("WARNING", "sev-3"), ("CRITICAL", "sev-1")]
    assert metrics.of("emit_failed") == [["start"]]
    assert metrics.of("skill_refused") == [[made.identity.skill_id, "missing_context"]]


@pytest.mark.parametrize("stored", [False, True], ids=["before storing", "after storing"])
def test_a_refusal_that_is_interrupted_is_done_again(stored: bool) -> None:
    """One row; a soft limit has nothing left to stop, an exit is raised."""
    memory = FakeMemory((SOFT, stored), (LEAVE, stored))
    made = invocation(memory)
    with pytest.raises(SystemExit):
        made.refuse(Refusal.MISSING_CONTEXT, "nobody called")
    assert (made.state, memory.kinds()) == (State.REFUSED, [REFUSED])
    memory = FakeMemory((SOFT, stored))
    invocation(memory).refuse(Refusal.MISSING_CONTEXT, "nobody called")
    assert memory.kinds() == [REFUSED]


# --- request ids ----------------------------------------------------------------------------------

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


def ids_of_a_fork(count: int) -> list[str]:
    """What ``count`` calls give in a child forked right now."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with os.fdopen(writing, "w") as pipe:
            pipe.write(" ".join(new_request_id() for _ in range(count)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ids = pipe.read().split()
    os.waitpid(pid, 0)
    return ids


def test_request_ids_are_unique_ulids_of_this_moment() -> None:
    """200,000 of them: all valid, all different, their time between the two readings."""
    before = datetime.now(UTC)
    ids = [new_request_id() for _ in range(200_000)]
    after = datetime.now(UTC)
    assert len(set(ids)) == len(ids)
    assert all(map(ULID.fullmatch, ids))
    times = [module.ULID.from_str(request_id).timestamp for request_id in (ids[0], ids[-1])]
    assert int(before.timestamp() * 1000) / 1000 <= times[0] <= times[1] <= after.timestamp()


def test_request_ids_are_unique_across_forks() -> None:
    """Parent and children that were forked right after an id was made never repeat one."""
    ids = []
    for _ in range(20):
        ids.append(new_request_id())
        ids += ids_of_a_fork(50)
    assert len(set(ids)) == len(ids) == 20 * 51
