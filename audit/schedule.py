"""Ticks: which entry of a beat schedule a message comes of, and when that was due.

A tick is named by tenant, skill, schedule and due time: two hosts that share a memory may have
entries of one name. Beat writes the last two into message headers, which are signed like every
other; the worker puts them into the rows. What is guaranteed:

* what does not look like a tick is none, and says so: no header ends up in a row unchecked;
* :func:`duplicates` finds every tick that ran under more than one task id. A redelivery and a retry
  have the task id of their first, so they are none; nor is what was refused or never dispatched.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from audit.errors import InvalidInvocationContext
from audit.row import COMPLETED, STARTED, AuditRow, Reason, timestamp

#: Message headers of a tick.
SCHEDULE_HEADER: Final = "audit_schedule"
DUE_HEADER: Final = "audit_due"
ONCE_HEADER: Final = "audit_once_per_tick"

#: How a schedule may be named: Celery makes up names with arguments in them, ``skill(1, 'x')``.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/@+-]{0,199}")
_DUE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")

#: Tenant, skill, schedule and due time.
_Named = tuple[str, str, str, str]


def is_schedule_name(name: object) -> bool:
    """Whether rows can name a schedule so."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """One due time of one entry of a beat schedule.

    Attributes:
        schedule: the name of the entry.
        due: when it was due, as rows write a moment; not when it was sent.
        once: whether only one message of this tick may start (``once_per_tick``).

    Raises:
        InvalidInvocationContext: a part is malformed; the text says which, and repeats nothing.
    """

    schedule: str
    due: str
    once: bool = False

    def __post_init__(self) -> None:
        if not is_schedule_name(self.schedule):
            raise InvalidInvocationContext(
                "the name of a schedule must be 1 to 200 of letters, digits, blanks and ._:/@+-"
            )
        if not _is_moment(self.due):
            raise InvalidInvocationContext(
                "a due time must be a UTC time like 2026-11-29T21:45:00.000000Z"
            )
        if not isinstance(self.once, bool):
            raise InvalidInvocationContext("once_per_tick must be true or false")

    @classmethod
    def at(cls, schedule: str, due: datetime, *, once: bool = False) -> Tick:
        """The tick of ``schedule`` that is due at an aware moment."""
        return cls(schedule=schedule, due=timestamp(due), once=once)

    @classmethod
    def from_headers(cls, headers: Mapping[str, Any]) -> Tick | None:
        """The tick that message headers name; ``None`` where they name none.

        Raises:
            InvalidInvocationContext: they name one that cannot be.
        """
        schedule, due = headers.get(SCHEDULE_HEADER), headers.get(DUE_HEADER)
        once = headers.get(ONCE_HEADER)
        if schedule is None and due is None and once is None:
            return None
        return cls(
            schedule=schedule,  # type: ignore[arg-type] # checked in there
            due=due,  # type: ignore[arg-type]
            once=False if once is None else once,
        )

    def headers(self) -> dict[str, Any]:
        """The message headers that name this tick."""
        headers: dict[str, Any] = {SCHEDULE_HEADER: self.schedule, DUE_HEADER: self.due}
        if self.once:
            headers[ONCE_HEADER] = True
        return headers

    def token(self, skill_id: str) -> str:
        """Names this tick of a skill within its tenant."""
        return hashlib.sha256(json.dumps([skill_id, self.schedule, self.due]).encode()).hexdigest()


def tick_of(message: Mapping[str, Any]) -> Tick | None:
    """The tick of a message, ``None`` also where it names one that cannot be."""
    try:
        return Tick.from_headers(message)
    except InvalidInvocationContext:
        return None


def duplicates(read: Callable[[], Iterable[AuditRow]]) -> Iterator[AuditRow]:
    """The started rows of every tick that ran under more than one task id, in stored order.

    Args:
        read: reads the rows from the first on. It is called anew for each look, so that
            what is kept meanwhile is one task id a tick and no row.
    """
    first: dict[_Named, str] = {}
    twice: set[_Named] = set()
    undispatched = _undispatched(read())
    for tick, row in _ran(read(), undispatched):
        if first.setdefault(tick, task_of(row)) != task_of(row):
            twice.add(tick)
    if twice:
        yield from (row for tick, row in _ran(read(), undispatched) if tick in twice)


def task_of(row: AuditRow) -> str:
    """The task id of a row, as text."""
    return str(row.meta.get("task_id"))


def _undispatched(rows: Iterable[AuditRow]) -> set[str]:
    """Invocations whose started row landed although the gate had said no: their body never ran."""
    return {
        row.request_id
        for row in rows
        if row.kind == COMPLETED
        and "schedule" in row.meta
        and row.meta.get("reason") == Reason.NOT_DISPATCHED
    }


def _ran(rows: Iterable[AuditRow], undispatched: set[str]) -> Iterator[tuple[_Named, AuditRow]]:
    for row in rows:
        schedule, due = row.meta.get("schedule"), row.meta.get("due")
        if row.kind != STARTED or schedule is None or due is None:
            continue
        if row.request_id not in undispatched:
            skill_id = str(row.payload.get("skill_id"))
            yield (row.tenant_id, skill_id, str(schedule), str(due)), row


def _is_moment(due: object) -> bool:
    if not (isinstance(due, str) and _DUE.fullmatch(due)):
        return False
    try:
        datetime.fromisoformat(due)
    except ValueError:
        return False
    return True
