"""What the overview counts: endings over time, how skills did, how long an emit took."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from audit.board.line import number, text
from audit.row import COMPLETED, REFUSED, STARTED, AuditRow, Outcome

Value = TypeVar("Value", int, float)
#: What the time of a row in the store is asked from.
StoredAt = Callable[[AuditRow], datetime]

BUCKETS: Final = 60
SKILLS: Final = 10
#: How long a bucket can be, in seconds; beyond that, whole days.
_LENGTHS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
_DAY: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """How many invocations ended in one stretch of time.

    Attributes:
        begin: when it begins, in UTC.
        counts: for each of the four outcomes, 0 included, in their order.
    """

    begin: datetime
    counts: Mapping[Outcome, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endings:
    """How invocations ended over time, by the store's clock.

    Attributes:
        buckets: oldest first, without gaps, the last one with the present moment; 60 at most. Empty
            where nothing was looked at. The first one may lack what lies before the look.
        seconds_each: how long each is.
    """

    buckets: tuple[Bucket, ...]
    seconds_each: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillLine:
    """How one skill did.

    Attributes:
        skill_id: its name.
        calls: invocations that ended.
        failed: those of them whose outcome is not success.
        p50_ms, p95_ms, max_ms: of the durations that were measured; ``None`` where none was.
    """

    skill_id: str
    calls: int
    failed: int
    p50_ms: int | None
    p95_ms: int | None
    max_ms: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedLine:
    """How often invocations were refused for one reason, and the last time."""

    reason: str
    count: int
    last: AuditRow


def endings(
    rows: Iterable[AuditRow], reached: datetime | None, now: datetime, stored_at: StoredAt
) -> Endings:
    """The completed rows by the time they were stored, from ``reached`` to ``now``."""
    if reached is None:
        return Endings(buckets=(), seconds_each=_LENGTHS[0])
    begin, end = _seconds(reached), _seconds(max(now, reached))
    each = _length(end - begin)
    first, last = begin // each, end // each
    counts: dict[int, Counter[Outcome]] = defaultdict(Counter)
    for row in rows:
        if row.kind == COMPLETED and (outcome := _outcome(row)) is not None:
            # A clock that goes on while we read puts the newest row behind ``now``.
            counts[min(last, _seconds(stored_at(row)) // each)][outcome] += 1
    buckets = (_bucket(slot * each, counts[slot]) for slot in range(first, last + 1))
    return Endings(buckets=tuple(buckets), seconds_each=each)


@dataclass(frozen=True, kw_only=True, slots=True)
class Skills:
    """The skills worth a look: the slowest, and those that fail most."""

    slowest: tuple[SkillLine, ...]
    failing: tuple[SkillLine, ...]


def skills(rows: Iterable[AuditRow]) -> Skills:
    """How the skills of these rows did."""
    of_skill: dict[str, list[AuditRow]] = defaultdict(list)
    for row in rows:
        if row.kind == COMPLETED and (skill_id := text(row.payload.get("skill_id"))):
            of_skill[skill_id].append(row)
    lines = [_skill(skill_id, found) for skill_id, found in sorted(of_skill.items())]
    timed = [line for line in lines if line.p95_ms is not None]
    failing = [line for line in lines if line.failed]
    return Skills(
        slowest=tuple(sorted(timed, key=lambda line: -(line.p95_ms or 0))[:SKILLS]),
        failing=tuple(sorted(failing, key=lambda line: -line.failed)[:SKILLS]),
    )


def refusals(rows: Iterable[AuditRow]) -> tuple[RefusedLine, ...]:
    """Refused rows, which come newest first, by reason; the most frequent first."""
    counts: Counter[str] = Counter()
    last: dict[str, AuditRow] = {}
    for row in rows:
        if row.kind == REFUSED and (reason := text(row.payload.get("reason"))):
            counts[reason] += 1
            last.setdefault(reason, row)
    return tuple(
        RefusedLine(reason=reason, count=count, last=last[reason])
        for reason, count in counts.most_common()
    )


def emit_milliseconds(rows: Iterable[AuditRow], stored_at: StoredAt) -> list[float]:
    """From the ``ts`` of each row of an invocation until the store had it."""
    return [
        (stored_at(row) - datetime.fromisoformat(row.ts)).total_seconds() * 1000
        for row in rows
        if row.kind in (STARTED, COMPLETED)
    ]


def percentile(values: Sequence[Value], percent: int) -> Value | None:
    """The smallest value that at least ``percent`` of 100 do not exceed; ``None`` without any."""
    if not values:
        return None
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


# --- inside ---------------------------------------------------------------------------------------


def _skill(skill_id: str, rows: Sequence[AuditRow]) -> SkillLine:
    measured = [
        found
        for row in rows
        # Where nobody measured it, a row says of its duration that it is a bound.
        if row.meta.get("duration") is None
        and (found := number(row.payload.get("duration_ms"))) is not None
    ]
    return SkillLine(
        skill_id=skill_id,
        calls=len(rows),
        failed=sum(row.payload.get("outcome") != Outcome.SUCCESS for row in rows),
        p50_ms=percentile(measured, 50),
        p95_ms=percentile(measured, 95),
        max_ms=max(measured, default=None),
    )


def _outcome(row: AuditRow) -> Outcome | None:
    word = row.payload.get("outcome")
    return Outcome(word) if word in _OUTCOMES else None


_OUTCOMES: Final = tuple(outcome.value for outcome in Outcome)


def _bucket(begin: int, counts: Counter[Outcome]) -> Bucket:
    return Bucket(
        begin=_EPOCH + timedelta(seconds=begin),
        counts={outcome: counts[outcome] for outcome in Outcome},
    )


def _length(span: int) -> int:
    """Such that the span, wherever it begins, touches :data:`BUCKETS` of them at most."""
    least = span / (BUCKETS - 1)
    whole_days = _DAY * math.ceil(least / _DAY)
    return next((length for length in _LENGTHS if length >= least), whole_days)


def _seconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(seconds=1)
