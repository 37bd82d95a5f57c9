"""One invocation: started at most once, closed at most once, timed on the monotonic clock.

This is the only state machine of the host. Its transitions stand in :data:`TRANSITIONS`; where the
invocation stands is decided here and nowhere else, but that two *processes* never close the same
invocation twice is decided by the memory (close once, decision 4).

Guarantees:

* :meth:`Invocation.start` returns only when the started row is durable, else it raises
  :class:`audit.errors.AuditEmitFailed` and the invocation can never run (S1.5);
* :meth:`Invocation.close` returns only when the completed row is on record or in the spool, or, if
  the disk fails as well, was reported as sev-1 with the whole row in the log record; it never
  undoes anything (S1.5);
* an emit that a signal interrupts is done again, for emits are idempotent: a soft time limit that
  strikes inside one neither loses a row nor doubles it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from ulid import ULID

from audit import alarms, metrics
from audit.errors import (
    AuditEmitFailed,
    AuditError,
    AuditMemoryError,
    MemoryUnavailableError,
    RowRefusedError,
    SpoolError,
    TickTakenError,
)
from audit.memory.base import SETTLING, Hold, Once, RowRefusal, Stored
from audit.memory.result import TaskResult
from audit.recorder import Kept, Recorder
from audit.row import (
    AuditRow,
    Ending,
    Identity,
    Outcome,
    Reason,
    Refusal,
    skill_invoked_completed,
    skill_invoked_refused,
    skill_invoked_started,
    timestamp,
)

#: How often an emit that a signal interrupted is done again before it counts as failed.
INTERRUPTIONS: Final = 3


_TAKEN: Final = (
    "another message of this tick has started (once_per_tick): two beats send it, or one sent it"
    " again; it runs once"
)


class State(StrEnum):
    """Where an invocation stands."""

    RECEIVED = "received"
    REFUSED = "refused"
    NOT_STARTED = "not started"
    STARTED = "started"
    RUNNING = "running"
    CLOSED = "closed"
    SPOOLED = "spooled"
    UNRECORDED = "unrecorded"


_ENDED: Final = frozenset({State.CLOSED, State.SPOOLED, State.UNRECORDED})

#: From where to where. NOT_STARTED: the memory did not take the started row. SPOOLED: it did not
#: take the completed one, the spool did. UNRECORDED: the spool did not take it either.
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.RECEIVED: frozenset({State.STARTED, State.NOT_STARTED, State.REFUSED}),
    State.STARTED: frozenset({State.RUNNING}) | _ENDED,
    State.RUNNING: _ENDED,
    State.REFUSED: frozenset(),
    State.NOT_STARTED: frozenset(),
    State.CLOSED: frozenset(),
    State.SPOOLED: frozenset(),
    State.UNRECORDED: frozenset(),
}

_AFTER: Final[Mapping[Kept, State]] = {
    Kept.MEMORY: State.CLOSED,
    Kept.LATE: State.CLOSED,
    Kept.SETTLED: State.CLOSED,
    Kept.SPOOL: State.SPOOLED,
    Kept.BEHIND: State.SPOOLED,
}


class Invocation:
    """One run of a skill's body.

    Args:
        identity: who, what, for whom; ``redelivered`` becomes true when the memory tells so.
        recorder: where its rows go.
        clock: monotonic seconds.
        now: the wall clock, for the rows' ``ts`` only.

    Attributes:
        late: whether its completion came after somebody else had closed it.
        overtaken: whether an ending seen from outside waits in the spool before its own.
    """

    def __init__(
        self,
        identity: Identity,
        recorder: Recorder,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.identity = identity
        self.state = State.RECEIVED
        self.late = False
        self.overtaken = False
        self._counts = True
        self._in_memory = False
        self._pid = os.getpid()
        self._recorder = recorder
        self._clock = clock
        self._now = now
        self._began: float | None = None
        self._ended: float | None = None
        self._completed: AuditRow | None = None
        self._interrupt: BaseException | None = None

    @property
    def open(self) -> bool:
        """Whether a started row of this invocation waits for its completed one.

        In a process that the body forked it does not: that one is not the invocation's.
        """
        return self._pid == os.getpid() and self.state in (State.STARTED, State.RUNNING)

    def start(
        self,
        args_hash: str,
        *,
        once_token: str | None = None,
        once_seconds: int = 0,
        hold: Hold | None = None,
    ) -> None:
        """Make the started row durable; ``redelivered`` where its message was started before.

        Args:
            args_hash: hash of the arguments.
            once_token: names the message (:class:`audit.memory.base.Once`); ``None``: only the
                broker tells whether it is a redelivery.
            once_seconds: how long the memory remembers the token; 1 or more where there is one.
            hold: takes the tick it comes of; ``None``: its tick is nobody's.

        Raises:
            AuditEmitFailed: the memory did not take it; the body must not run.
            TickTakenError: another message has its tick; the refused row is on record.
            ValueError: token or seconds are unusable; nothing was emitted.
        """
        self._require(State.STARTED)
        row = skill_invoked_started(self.identity, args_hash, ts=timestamp(self._now()))
        once = None if once_token is None else Once(token=once_token, seconds=once_seconds)
        try:
            self._put(row, "start", lambda row: self._start(row, once, hold))
        except AuditMemoryError as error:
            if _is_taken(error):
                raise self._refuse_tick() from None
            self._never_start(error)
            alarms.not_started(self.identity, error)
            self._pass_on_interruption()
            raise AuditEmitFailed("start", str(error)) from error
        self._began = self._clock()
        self._pass_on_interruption(soft=True)

    def refuse(self, refusal: Refusal, why: str) -> None:
        """Record that the invocation was not allowed to start (a row, a counter, a log record)."""
        self._require(State.REFUSED)
        alarms.refused(self.identity, refusal, why)
        row = skill_invoked_refused(self.identity, refusal, ts=timestamp(self._now()))
        try:
            self._put(row, "start", self._refuse)
        except AuditMemoryError as error:
            alarms.not_started(self.identity, error)
            self._move(State.REFUSED)
        self._pass_on_interruption()

    def begin(self) -> None:
        """The body runs from now on."""
        self._move(State.RUNNING)
        self._began = self._clock()

    def ended(self) -> None:
        """The body left just now; what comes after does not count into the duration."""
        if self._ended is None:
            self._ended = self._clock()

    def close(self, ending: Ending) -> None:
        """Put the ending on record; the first call decides, later ones do nothing.

        Never raises for the memory's sake. An exception out of a signal handler that asks the
        process to exit is raised again once the row is on record; a soft time limit is not, for
        the body is over.
        """
        self.hold(ending)
        self.close_held()

    def hold(self, ending: Ending) -> None:
        """Decide the ending, and leave it to others to put it on record (merged mode).

        Whoever closes the invocation does that, with whatever ending: this one stays, unless
        :meth:`hold_anew` replaces it.
        """
        if self.open and self._completed is None:
            self.ended()
            self._completed = self._row(ending)

    def hold_anew(self, ending: Ending) -> None:
        """Decide the ending that is held otherwise: nothing of it is on record or was seen."""
        if self.held:
            self._completed = self._row(ending)

    @property
    def held_reason(self) -> Reason | None:
        """Of the ending that is held, if there is one."""
        return Reason(self._completed.meta["reason"]) if self._completed and self.open else None

    @property
    def held(self) -> bool:
        """Whether an ending is decided and not yet on record."""
        return self._completed is not None and self.open

    def close_held(self) -> None:
        """Put the ending that is held on record, where there is one."""
        if self._completed is not None and self.open:
            self._close(self._completed)

    def close_with(self, result: TaskResult) -> bool:
        """Put the ending that is held on record, and the task's result in the same step.

        Returns whether the result was stored; if not, the ending is on record without it, as
        :meth:`close` has it.
        """
        if self._completed is None or not self.open:
            return False
        self._close(self._completed, result)
        return self._in_memory

    # --- inside -------------------------------------------------------------------------------

    def _close(self, row: AuditRow, result: TaskResult | None = None) -> None:
        try:
            self._put(row, "completed", lambda row: self._complete(row, result))
        except (AuditMemoryError, SpoolError) as error:
            self._spool_or_report(row, error)
        if self._counts:
            metrics.skill_invoked(
                self.identity.skill_id,
                str(row.payload["outcome"]),
                int(row.payload["duration_ms"]),
            )
        self._pass_on_interruption()

    def _require(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"an invocation never goes from {self.state} to {state}")

    def _move(self, state: State) -> None:
        self._require(state)
        self.state = state

    def _row(self, ending: Ending) -> AuditRow:
        if ending.outcome is Outcome.SUCCESS and ending.reason is not Reason.IGNORED:
            alarms.insist_on_hash(self.identity, ending)
        return skill_invoked_completed(
            self.identity, ending, self._duration_ms(), ts=timestamp(self._now())
        )

    def _duration_ms(self) -> int:
        began, ended = self._began, self._ended
        if began is None or ended is None:
            return 0
        if ended < began:
            alarms.negative_duration(self.identity)
            return 0
        return round((ended - began) * 1000)

    def _start(self, row: AuditRow, once: Once | None, hold: Hold | None) -> State:
        if self._recorder.start(row, once, hold) is Stored.REPLAYED:
            self.identity = replace(self.identity, redelivered=True)
        return State.STARTED

    def _refuse(self, row: AuditRow) -> State:
        self._recorder.start(row)
        return State.REFUSED

    def _refuse_tick(self) -> TickTakenError:
        """The memory has nothing of this invocation, however often its emit was interrupted."""
        error = TickTakenError(_TAKEN)
        self.refuse(Refusal.TICK_TAKEN, str(error))
        return error

    def _complete(self, row: AuditRow, result: TaskResult | None) -> State:
        if row.meta["reason"] == Reason.TERMINATED:
            # The main process knows why this one was told to exit: what it spooled comes first.
            kept = self._recorder.settle(row)
        else:
            kept = self._recorder.complete(row, result)
            self._in_memory = kept is Kept.MEMORY
        self._counts = kept is Kept.MEMORY or (kept is Kept.SPOOL and _is_own(row))
        if kept is Kept.LATE:
            self.late = True
            alarms.late(row)
        if kept is Kept.BEHIND:
            self.overtaken = True
        if kept in (Kept.SPOOL, Kept.BEHIND):
            alarms.spooled(row)
        return _AFTER[kept]

    def _spool_or_report(self, row: AuditRow, error: AuditError) -> None:
        """An emit that signals interrupted too often left the row nowhere: try the spool."""
        if isinstance(error, MemoryUnavailableError) and self._recorder.has_spool:
            try:
                self._persist(lambda: self._spool(row))
                return
            except (AuditMemoryError, SpoolError) as problem:
                error = problem
        # In this order: a signal in between gets the row reported twice, not never.
        alarms.unrecorded(row, error)
        self._move(State.UNRECORDED)

    def _spool(self, row: AuditRow) -> State:
        self._recorder.keep(row)
        self._counts = _is_own(row)
        alarms.spooled(row)
        return State.SPOOLED

    def _never_start(self, error: AuditMemoryError) -> None:
        """The body does not run; what may have landed, or may still, is to be closed or barred.

        An emit that was interrupted may have landed, whatever the one after it came to.
        """
        if not (error.maybe_stored or self._interrupt):
            self._move(State.NOT_STARTED)
            return
        ending = Ending(
            reason=Reason.NOT_DISPATCHED,
            error_message="AuditEmitFailed: the skill was not dispatched",
        )
        row = skill_invoked_completed(self.identity, ending, 0, ts=timestamp(self._now()))
        try:
            self._persist(lambda: self._bar(row))
        except (AuditMemoryError, SpoolError) as problem:
            alarms.unrecorded(row, problem)
            self._move(State.NOT_STARTED)

    def _bar(self, row: AuditRow) -> State:
        self._recorder.keep(row)
        return State.NOT_STARTED

    def _put(self, row: AuditRow, stage: metrics.Stage, put: Callable[[AuditRow], State]) -> None:
        """Put ``row`` on record and go where that leads; done again when a signal interrupts.

        Raises:
            AuditMemoryError: the memory did not take the row, or was interrupted too often.
            SpoolError: the spool did not take it either.
        """
        self._persist(lambda: self._timed(row, stage, put))

    def _persist(self, step: Callable[[], State]) -> None:
        """Do ``step`` and go where that leads; done again when a signal interrupts.

        Going there is part of what is done again, so that no signal finds a row on record and an
        invocation that does not know it.
        """
        before = self.state
        for _ in range(INTERRUPTIONS):
            try:
                self._move(step())
                return
            except (AuditMemoryError, SpoolError):
                raise
            except BaseException as error:  # whatever a signal handler raises in here
                self._interrupt = self._interrupt if _asks_to_exit(self._interrupt) else error
                if self.state is not before:
                    return
        raise MemoryUnavailableError(
            f"the emit was interrupted {INTERRUPTIONS} times, by {type(self._interrupt).__name__}",
            maybe_stored=True,
        ) from self._interrupt

    def _timed(
        self, row: AuditRow, stage: metrics.Stage, put: Callable[[AuditRow], State]
    ) -> State:
        began = self._clock()
        try:
            return put(row)
        finally:
            metrics.emit_took(stage, (self._clock() - began) * 1000)

    def _pass_on_interruption(self, *, soft: bool = False) -> None:
        """Raise what a signal handler raised inside an emit, now that the row's lot is known.

        What asks the process to exit, always; a soft time limit only where it still has something
        to stop.
        """
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None and (soft or _asks_to_exit(interrupt)):
            raise interrupt


def _is_own(row: AuditRow) -> bool:
    """Whether nobody but the body's process reports this; else it counts when it is replayed."""
    return row.meta["reason"] not in SETTLING


def _is_taken(error: AuditMemoryError) -> bool:
    return isinstance(error, RowRefusedError) and error.refusal == RowRefusal.TICK_TAKEN


def _asks_to_exit(interrupt: BaseException | None) -> bool:
    return interrupt is not None and not isinstance(interrupt, Exception)


def new_request_id() -> str:
    """A fresh ULID, unique across forks and threads without any state or lock."""
    milliseconds = time.time_ns() // 1_000_000
    return str(ULID.from_bytes(milliseconds.to_bytes(6, "big") + os.urandom(10)))
