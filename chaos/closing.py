"""How fast invocations were closed whose process died: found by who was hit, when, by what.

The clock of an invocation runs from the blow that ended it, and stands still while the memory does
not answer or no keeper runs. What an invocation was hit by is known by the process its body ran in,
by its worker, or by its message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from audit.row import COMPLETED, STARTED, AuditRow, Reason
from chaos.injector import Blow, Span
from chaos.verdict import SLOW_CLOSING, UNEXPLAINED, Account, Finding, first

#: Endings of what was ended from outside; a hard limit is no fault, but is closed from outside.
DEATHS: Final = frozenset(
    {Reason.ABANDONED, Reason.WORKER_LOST, Reason.REVOKED, Reason.TERMINATED, Reason.SHUTDOWN}
)

#: Within so many seconds of a death it is to be closed, with leases of so many seconds.
LIMIT: Final = 30.0
LIMIT_LEASE: Final = 15.0
#: What does not shrink with the lease: a busy machine, a pool that looks for dead children.
SLACK: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """One invocation that was closed from outside.

    Attributes:
        rows: its rows.
        reason: what it was closed as.
        blow: what ended it.
        seconds: what closing took, not counted while nobody could have done it.
        in_all: seconds since the blow.
    """

    rows: Sequence[AuditRow]
    reason: Reason
    blow: Blow
    seconds: float
    in_all: float


def limit(lease: float) -> float:
    return LIMIT * lease / LIMIT_LEASE + SLACK


class Closings:
    """Finds for every death its cause."""

    def __init__(self, account: Account, blows: Sequence[Blow], pauses: Sequence[Span]) -> None:
        self._account = account
        self._blows = blows
        self._pauses = pauses
        self._mains = self._main_processes()

    def judge(self, lease: float) -> tuple[list[Closing], list[Finding]]:
        """Every closing, and what is wrong with them."""
        closings, findings = [], []
        for request_id, rows in self._deaths():
            blow = self._cause(request_id, rows)
            if blow is None:
                findings.append(Finding(UNEXPLAINED, request_id, rows))
                continue
            closing = self._closing(rows, blow)
            closings.append(closing)
            if closing.seconds > limit(lease):
                text = f"{request_id}: {closing.seconds:.1f} s after: {blow.what}"
                findings.append(Finding(SLOW_CLOSING, text, rows))
        return closings, findings

    def _deaths(self) -> Iterator[tuple[str, list[AuditRow]]]:
        for request_id, rows in self._account.invocations.items():
            kinds = [row.kind for row in rows]
            if STARTED in kinds and COMPLETED in kinds and _reason(rows) in DEATHS:
                yield request_id, rows

    def _closing(self, rows: Sequence[AuditRow], blow: Blow) -> Closing:
        landed = stored_at(first(rows, COMPLETED))
        began = max(blow.at, stored_at(first(rows, STARTED)))
        return Closing(
            rows=rows,
            reason=_reason(rows),
            blow=blow,
            seconds=max(0.0, landed - began - self._paused(began, landed)),
            in_all=landed - blow.at,
        )

    def _paused(self, began: float, ended: float) -> float:
        """Seconds between the two in which nobody could have closed anything, each counted once."""
        paused, counted = 0.0, began
        for span in sorted(self._pauses, key=lambda span: span.began):
            first_second, last = max(span.began, counted), min(span.ended, ended)
            if last > first_second:
                paused += last - first_second
                counted = last
        return paused

    def _cause(self, request_id: str, rows: Sequence[AuditRow]) -> Blow | None:
        """The last blow that hit the invocation before it was closed."""
        started = first(rows, STARTED)
        landed = stored_at(first(rows, COMPLETED))
        pids = {effect.pid for effect in self._account.effects.get(request_id, ())}
        mains = self._mains.get(str(started.meta["worker"]), set())
        hits = (
            blow
            for blow in self._blows
            if blow.at <= landed
            and (blow.pids & (pids | mains) or blow.task_id == started.meta["task_id"])
        )
        unknown = None if pids else self._child_of_unknown_pid(rows)
        return unknown or max(hits, key=lambda blow: blow.at, default=None)

    def _child_of_unknown_pid(self, rows: Sequence[AuditRow]) -> Blow | None:
        """A child that died before its body wrote a word: any blow while it was open explains."""
        begun = stored_at(first(rows, STARTED)) - _BEFORE
        landed = stored_at(first(rows, COMPLETED))
        hits = (blow for blow in self._blows if begun <= blow.at <= landed)
        return max(hits, key=lambda blow: blow.at, default=None)

    def _main_processes(self) -> dict[str, set[int]]:
        """The main process of each worker id, as the journal and the rows together tell."""
        mains: defaultdict[str, set[int]] = defaultdict(set)
        for request_id, effects in self._account.effects.items():
            for row in self._account.invocations.get(request_id, ()):
                if row.kind == STARTED:
                    mains[str(row.meta["worker"])].update(effect.main for effect in effects)
        return mains


#: A started row may land so many seconds after its process died, if the memory was paused.
_BEFORE: Final = 5.0


def stored_at(row: AuditRow) -> float:
    """When the memory took the row, by its own clock: seconds of the wall clock."""
    return int(str(row.position).partition("-")[0]) / 1000


def _reason(rows: Iterable[AuditRow]) -> Reason:
    return next(Reason(row.meta["reason"]) for row in rows if row.kind == COMPLETED)
