"""A long history, the same in each run to the byte: what queries at size are measured on.

Thirteen weeks of a plausible host, made by the rows' own constructors from one seed: tenants of
uneven weight, traces of 1 to 10 invocations that publish each other, mostly successes, a few
refusals, a few that are still open. Rows come in the order of their time, ends between starts.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from audit.row import (
    AuditRow,
    Ending,
    Identity,
    Reason,
    Refusal,
    skill_invoked_completed,
    skill_invoked_refused,
    skill_invoked_started,
    timestamp,
)

SEED: Final = 7
WEEKS: Final = 13
#: The history ends about here.
END: Final = datetime(2026, 11, 1, tzinfo=UTC)
TENANTS: Final = 8
LONGEST_TRACE: Final = 10
#: One of so many invocations is refused, still open.
REFUSED_EVERY, OPEN_EVERY = 100, 10_000
#: Invocations that somebody looks for.
SAMPLES: Final = 100
#: Rows that an invocation has, nearly.
ROWS_EACH: Final = 1.99
_HASH: Final = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
_ENDINGS: Final = (
    *[Ending(reason=Reason.RETURNED, result_hash=_HASH)] * 90,
    *[Ending(reason=Reason.RAISED, error_message="ConnectionError: feed 7 did not answer")] * 7,
    *[Ending(reason=Reason.SOFT_TIME_LIMIT, error_message="SoftTimeLimitExceeded: 60")] * 2,
    Ending(reason=Reason.WORKER_LOST, error_message="WorkerLostError: signal 9 (SIGKILL)"),
)


@dataclass(frozen=True, slots=True)
class Met:
    """One invocation, for somebody to look for."""

    request_id: str
    trace_id: str
    tenant_id: str


@dataclass(slots=True)
class Past:
    """The history of about ``rows`` rows.

    Attributes:
        rows: how many.
        met: some from each part of the history; filled while the rows are made.
    """

    rows: int
    met: list[Met] = field(default_factory=list)

    def __iter__(self) -> Iterator[AuditRow]:
        return islice(_in_order(self._invocations()), self.rows)

    def _invocations(self) -> Iterator[tuple[datetime, list[AuditRow]]]:
        """Each invocation with its moment and rows, in the order of their starts, without end."""
        dice = random.Random(SEED)
        step = timedelta(weeks=WEEKS) / max(1.0, self.rows / ROWS_EACH)
        moment, number = END - timedelta(weeks=WEEKS), 0
        meet_every = max(1, int(self.rows / ROWS_EACH / SAMPLES))
        while True:
            tenant = tenant_of(_uneven(dice))
            trace, parent = f"{dice.getrandbits(128) | 1:032x}", None
            for _ in range(dice.randint(1, LONGEST_TRACE)):
                number += 1
                moment += step
                identity = _identity(dice, number, tenant, trace, parent)
                parent = identity.request_id
                if number % meet_every == 0:
                    self.met.append(Met(identity.request_id, trace, tenant))
                yield moment, _rows(dice, identity, moment)


def tenant_of(number: int) -> str:
    """The tenants have numbers from 0; the lower, the more rows."""
    return f"00000000-0000-4000-8000-{number:012d}"


def _in_order(invocations: Iterator[tuple[datetime, list[AuditRow]]]) -> Iterator[AuditRow]:
    """Their rows as they are stored one after the other: an end waits until its moment."""
    waiting: list[tuple[str, int, AuditRow]] = []
    for number, (moment, rows) in enumerate(invocations):
        begun = timestamp(moment)
        while waiting and waiting[0][0] <= begun:
            yield heapq.heappop(waiting)[2]
        yield rows[0]
        for row in rows[1:]:
            heapq.heappush(waiting, (row.ts, number, row))


def _uneven(dice: random.Random) -> int:
    return min(dice.randrange(TENANTS), dice.randrange(TENANTS))


def _identity(
    dice: random.Random, number: int, tenant: str, trace: str, parent: str | None
) -> Identity:
    return Identity(
        request_id=f"01{number:024d}",
        skill_id=f"skills.family_{dice.randrange(5)}.skill_{dice.randrange(8)}",
        version="1.4.2",
        caller_persona=f"persona-{dice.randrange(12)}@0.4.1",
        tenant_id=tenant,
        trace_id=trace,
        task_id=f"7f1f4c1e-93a1-4f0f-9d0c-{number:012d}",
        parent_request_id=parent,
        worker=f"01WORKER{dice.randrange(16):018d}",
    )


def _rows(dice: random.Random, identity: Identity, moment: datetime) -> list[AuditRow]:
    ts = timestamp(moment)
    if dice.randrange(REFUSED_EVERY) == 0:
        return [skill_invoked_refused(identity, dice.choice(list(Refusal)), ts=ts)]
    begun = skill_invoked_started(identity, _HASH, ts=ts)
    if dice.randrange(OPEN_EVERY) == 0:
        return [begun]
    milliseconds = int(dice.lognormvariate(4, 1.5))
    ended = timestamp(moment + timedelta(milliseconds=milliseconds, microseconds=1))
    ending = dice.choice(_ENDINGS)
    return [begun, skill_invoked_completed(identity, ending, milliseconds, ts=ended)]
