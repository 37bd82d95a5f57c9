"""The verdict: three independent accounts of one run, held against each other.

The journal says which bodies ran, the memory what is on record, the result backend what callers
see. Whatever the faults were, the counts of :class:`Verdict` but the last ones are 0.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from audit.row import COMPLETED, LATE, REFUSED, STARTED, AuditRow, Outcome, Reason, row_schema
from audit.system_rows import SYSTEM_KINDS
from chaos.journal import Effect

#: What a result says that Celery stored for a body that returned.
SUCCESS: Final = "SUCCESS"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not be: which rule it breaks, whose invocation, and its rows."""

    rule: str
    subject: str
    rows: Sequence[AuditRow] = ()


ORPHAN: Final = "orphans"
DOUBLE: Final = "doubles"
UNAUDITED: Final = "effects without a started row"
TWICE: Final = "bodies run twice"
UNDISPATCHED: Final = "effects of what was not dispatched"
GROUNDLESS: Final = "successes without an effect"
NOT_STARTED: Final = "completed without started"
DISORDER: Final = "rows out of order"
INVALID: Final = "invalid rows"
QUARANTINED: Final = "quarantined rows"
REPORTED_LOST: Final = "rows reported as lost"
UNBACKED: Final = "results without a row"
UNEXPLAINED: Final = "deaths without a fault"
SLOW_CLOSING: Final = "closed too slowly"
#: Found by the soak alone, which knows every call that was made.
UNACCOUNTED: Final = "calls without a row or a result"

RULES: Final = (
    ORPHAN,
    DOUBLE,
    UNAUDITED,
    TWICE,
    UNDISPATCHED,
    GROUNDLESS,
    NOT_STARTED,
    DISORDER,
    INVALID,
    QUARANTINED,
    REPORTED_LOST,
    UNBACKED,
    UNEXPLAINED,
    SLOW_CLOSING,
)


class Account:
    """Everything known of a run's invocations.

    Attributes:
        invocations: rows by request_id, in stored order.
        effects: effects by request_id.
        results: Celery's state by task id.
    """

    def __init__(
        self, rows: Iterable[AuditRow], effects: Iterable[Effect], results: Mapping[str, str]
    ) -> None:
        self.invocations: defaultdict[str, list[AuditRow]] = defaultdict(list)
        self.effects: defaultdict[str, list[Effect]] = defaultdict(list)
        self.results = results
        for row in rows:
            self.invocations[row.request_id].append(row)
        for effect in effects:
            self.effects[effect.request_id].append(effect)

    def count(self, kind: str) -> int:
        return sum(row.kind == kind for rows in self.invocations.values() for row in rows)

    def endings(self) -> Counter[str]:
        """How often each reason closed an invocation."""
        return Counter(
            str(row.meta["reason"])
            for rows in self.invocations.values()
            for row in rows
            if row.kind == COMPLETED
        )

    def late(self) -> Counter[str]:
        """Late rows, by what had won and what came late."""
        return Counter(
            f"{first(rows, COMPLETED).meta['reason']}, then {row.meta['reason']}"
            for rows in self.invocations.values()
            for row in rows
            if row.kind == LATE
        )


def first(rows: Sequence[AuditRow], kind: str) -> AuditRow:
    return next(row for row in rows if row.kind == kind)


def judge(account: Account, validate_every: int = 1) -> list[Finding]:
    """Every rule broken by rows, effects and results.

    Args:
        account: what is known.
        validate_every: the rows of every so many invocations are held against the schema, which
            takes longer than all the rest.
    """
    found = [
        finding
        for number, rows in enumerate(account.invocations.values())
        for finding in _of_rows(rows, validate=number % validate_every == 0)
    ]
    found += [
        finding
        for request_id, effects in account.effects.items()
        for finding in _of_effects(request_id, effects, account.invocations.get(request_id, []))
    ]
    found += _groundless(account)
    found += _unbacked(account)
    return found


def _of_rows(rows: Sequence[AuditRow], *, validate: bool) -> Iterable[Finding]:
    kinds = [row.kind for row in rows]
    subject = rows[0].request_id
    undispatched = _reason(rows) is Reason.NOT_DISPATCHED
    if STARTED in kinds and COMPLETED not in kinds:
        yield Finding(ORPHAN, subject, rows)
    if kinds.count(COMPLETED) > 1 or kinds.count(STARTED) > 1:
        yield Finding(DOUBLE, subject, rows)
    if COMPLETED in kinds and STARTED not in kinds and not undispatched:
        yield Finding(NOT_STARTED, subject, rows)
    if kinds != sorted(kinds, key=_ORDER.index):
        yield Finding(DISORDER, subject, rows)
    for row in rows if validate else ():
        if error := _invalid(row):
            yield Finding(INVALID, f"{subject}: {error}", [row])


_ORDER: Final = [*sorted(SYSTEM_KINDS), REFUSED, STARTED, COMPLETED, LATE]


def _of_effects(
    request_id: str, effects: Sequence[Effect], rows: Sequence[AuditRow]
) -> Iterable[Finding]:
    if STARTED not in [row.kind for row in rows]:
        yield Finding(UNAUDITED, request_id, rows)
    if len(effects) > 1:
        yield Finding(TWICE, request_id, rows)
    if _reason(rows) is Reason.NOT_DISPATCHED:
        yield Finding(UNDISPATCHED, request_id, rows)


def _groundless(account: Account) -> Iterable[Finding]:
    return (
        Finding(GROUNDLESS, request_id, rows)
        for request_id, rows in account.invocations.items()
        if _succeeded(rows) and request_id not in account.effects
    )


def _unbacked(account: Account) -> Iterable[Finding]:
    """A result that says success, without a row (in time or late) that says so, too."""
    of_task: defaultdict[str, list[AuditRow]] = defaultdict(list)
    for rows in account.invocations.values():
        of_task[str(rows[0].meta["task_id"])] += rows
    return (
        Finding(UNBACKED, task_id, of_task[task_id])
        for task_id, state in account.results.items()
        if state == SUCCESS and not _succeeded(of_task[task_id])
    )


def _succeeded(rows: Sequence[AuditRow]) -> bool:
    return any(row.payload.get("outcome") == Outcome.SUCCESS for row in rows)


def _reason(rows: Sequence[AuditRow]) -> Reason | None:
    return next((Reason(row.meta["reason"]) for row in rows if row.kind == COMPLETED), None)


def _invalid(row: AuditRow) -> str:
    error = next(iter(_validator().iter_errors(json.loads(row.to_bytes()))), None)
    return "" if error is None else str(error.message)


@cache
def _validator() -> Any:
    return Draft202012Validator(row_schema())
