"""Beat: every tick of a skill says which entry it comes of, and when that was due.

What is guaranteed of an entry whose task is a skill:

* beat does not start unless the entry names a persona and a tenant that the host can use, as
  ``options={"headers": InvocationContext(persona, tenant_id).headers()}``;
* the message names the entry and its due time, computed from when the entry ran last and not from
  the clock at sending; after a standstill that is the first tick that was missed;
* with ``once_per_tick=True`` (crontab entries only) the memory lets one message of a tick start.

Entries of plain tasks stay as they are. :class:`TickingScheduler` is a mixin: put it before any
scheduler of Celery's kind, as ``class Mine(TickingScheduler, DatabaseScheduler)``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery.beat import PersistentScheduler, ScheduleEntry
from celery.schedules import BaseSchedule, crontab

from audit.context import PERSONA_HEADER, TENANT_HEADER, InvocationContext
from audit.errors import InvocationError, ScheduleDefinitionError
from audit.schedule import (
    DUE_HEADER,
    ONCE_HEADER,
    SCHEDULE_HEADER,
    Tick,
    is_schedule_name,
)
from tasks.runtime import runtime_of
from tasks.task import SkillTask

logger: Final = logging.getLogger("audit")

#: The option of an entry; kept among Celery's own options, so that every store of entries keeps it.
ONCE_OPTION: Final = "once_per_tick"

#: Writing the schedule's file takes one part in so many of beat's time at most.
WRITING: Final = 10

_TICK_HEADERS: Final = frozenset({SCHEDULE_HEADER, DUE_HEADER, ONCE_HEADER})


class OnceOption:
    """An entry that takes ``once_per_tick`` beside ``task`` and ``schedule``; a mixin."""

    def __init__(
        self, *args: Any, once_per_tick: object = None, options: Any = None, **rest: Any
    ) -> None:
        if once_per_tick is not None:
            options = {**(options or {}), ONCE_OPTION: once_per_tick}
        if options is not None:
            rest["options"] = options
        super().__init__(*args, **rest)


class SkillEntry(OnceOption, ScheduleEntry):
    """An entry of the default scheduler."""


class TickingScheduler:
    """What makes a scheduler of Celery's one of a skill host; a mixin."""

    app: Any

    def setup_schedule(self) -> None:
        """Called by Celery once, before anything is sent.

        Raises:
            ScheduleDefinitionError: an entry could not be audited; the text names all such.
        """
        check_schedule(self.app, self.app.conf.beat_schedule)
        super().setup_schedule()  # type: ignore[misc]

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **rest: Any
    ) -> Any:
        """Called by Celery to send a tick that is due.

        Raises:
            ScheduleDefinitionError: an entry that was added later could not be audited.
        """
        ticking = self._with_tick(entry)  # before the entry advances
        if advance:
            self.reserve(entry)  # type: ignore[attr-defined]
        return super().apply_async(  # type: ignore[misc]
            ticking, producer=producer, advance=False, **rest
        )

    def _with_tick(self, entry: Any) -> Any:
        if not is_audited(self.app, entry.task, entry.options):
            return entry
        if found := faults(self.app, entry.name, entry.task, entry.schedule, entry.options):
            raise ScheduleDefinitionError("; ".join(found))
        options = dict(entry.options)
        once = bool(options.pop(ONCE_OPTION, False))
        tick = Tick.at(entry.name, due_of(entry.schedule, entry.last_run_at), once=once)
        options["headers"] = {**options["headers"], **tick.headers()}
        return _with_options(entry, options)


class SkillScheduler(TickingScheduler, PersistentScheduler):
    """The scheduler of a skill host, unless ``beat_scheduler`` names another one.

    What it has sent is in its file at once, unless ``beat_sync_every`` says otherwise: Celery's own
    writes every three minutes, and sends all those ticks again when it was killed. The whole file
    is written each time, so one of a thousand entries follows by a second: else beat came late.
    """

    Entry = SkillEntry
    clock = staticmethod(time.monotonic)

    def __init__(self, app: Any, *args: Any, **rest: Any) -> None:
        rest.setdefault("sync_every_tasks", app.conf.beat_sync_every or 1)
        self._write_next = -math.inf
        super().__init__(app, *args, **rest)

    def should_sync(self) -> bool:
        """Called by Celery after each tick."""
        return bool(super().should_sync()) and self.clock() >= self._write_next

    def tick(self, *args: Any, **rest: Any) -> float:
        """Send what is due; seconds to sleep, no longer than until what was sent can be written."""
        interval: float = super().tick(*args, **rest)
        if self.should_sync():
            self._do_sync()
        elif super().should_sync():
            return min(interval, self._write_next - self.clock())
        return interval

    def _do_sync(self) -> None:
        began = self.clock()
        try:
            super()._do_sync()
            self.get_schedule()  # what was written is read anew, which takes as long
        except Exception:  # a full disk must not end the sending
            self._store.writeback = True  # shelve leaves it off, and would write nothing more
            logger.exception("the file of beat's schedule cannot be written")
        ended = self.clock()
        self._write_next = ended + (ended - began) * (WRITING - 1)


# --- due times ----------------------------------------------------------------------------------


def due_of(schedule: BaseSchedule, last_run_at: datetime | None) -> datetime:
    """When an entry was due that ran last at ``last_run_at``; now, where it never ran."""
    now: datetime = schedule.maybe_make_aware(schedule.now()).astimezone(UTC)
    if last_run_at is None:
        return now
    still = object.__new__(type(schedule))
    vars(still).update(vars(schedule), nowfun=lambda: now)
    left: timedelta = still.remaining_estimate(last_run_at)
    return now + left


def _with_options(entry: Any, options: dict[str, Any]) -> Any:
    """The same entry with other options; Celery's own way to copy one loses its app."""
    copy = object.__new__(type(entry))
    vars(copy).update(vars(entry), options=options)
    return copy


# --- checks -------------------------------------------------------------------------------------


def check_schedule(app: Any, schedule: Mapping[str, Any]) -> None:
    """Check every entry of a schedule as it is configured.

    Raises:
        ScheduleDefinitionError: an entry could not be audited; the text names all such.
    """
    if found := schedule_faults(app, schedule):
        raise ScheduleDefinitionError("; ".join(found))


def schedule_faults(app: Any, schedule: Mapping[str, Any]) -> list[str]:
    """Why entries of a schedule, as it is configured, could not be audited, in words."""
    found = []
    for name, entry in schedule.items():
        try:
            fields = dict(entry)
            options = dict(fields.get("options") or {})
        except (TypeError, ValueError):
            found.append(_said(name, None, "it must be a mapping, and its options must be another"))
            continue
        if fields.get(ONCE_OPTION) is not None:
            options[ONCE_OPTION] = fields[ONCE_OPTION]
        task = fields.get("task")
        found += faults(app, name, task, fields.get("schedule"), options)
        if (reason := _arguments_fault(app, task, fields)) is not None:
            found.append(_said(name, task, reason))
    return found


def is_audited(app: Any, task: Any, options: Mapping[str, Any]) -> bool:
    """Whether an entry is one of a skill.

    A task that this process does not know may be a skill elsewhere: it is taken for one where the
    entry says something that only skills have.
    """
    known = app.tasks.get(task)
    if known is not None:
        return isinstance(known, SkillTask)
    headers = options.get("headers")
    named = headers if isinstance(headers, Mapping) else {}
    return ONCE_OPTION in options or bool({PERSONA_HEADER, TENANT_HEADER} & named.keys())


def faults(app: Any, name: Any, task: Any, schedule: Any, options: Mapping[str, Any]) -> list[str]:
    """Why an entry could not be audited, in words; nothing where all is well."""
    if not is_audited(app, task, options):
        plain = options.get(ONCE_OPTION)
        return [_said(name, task, "once_per_tick is for skills only")] if plain else []
    reasons = (
        _name_fault(name),
        _caller_fault(app, options),
        _once_fault(schedule, options),
        _tick_fault(options),
    )
    return [_said(name, task, reason) for reason in reasons if reason is not None]


def _said(name: Any, task: Any, reason: str) -> str:
    shown = repr(name) if is_schedule_name(name) else "with a name of its own making"
    return f"beat entry {shown} of task {task}: {reason}"


def _arguments_fault(app: Any, task: Any, fields: Mapping[str, Any]) -> str | None:
    """Arguments that do not fit would fail at each tick, in beat's log alone."""
    known = app.tasks.get(task)
    if not isinstance(known, SkillTask):
        return None
    try:
        known.parameters.bind(*(fields.get("args") or ()), **(fields.get("kwargs") or {}))
    except TypeError:
        return "its args and kwargs do not fit the skill"
    return None


def _tick_fault(options: Mapping[str, Any]) -> str | None:
    headers = options.get("headers")
    if isinstance(headers, Mapping) and _TICK_HEADERS & headers.keys():
        return "its ticks are named by beat alone: leave audit_schedule and the like out of headers"
    if options.get("task_id") is not None:
        return "each tick needs a task id of its own, to be told from others: leave out task_id"
    return None


def _name_fault(name: Any) -> str | None:
    if is_schedule_name(name):
        return None
    return (
        "rows name it, so its name must be 1 to 200 of letters, digits, blanks and ._:/@+- (without"
        " name= Celery makes one up with the arguments in it)"
    )


def _caller_fault(app: Any, options: Mapping[str, Any]) -> str | None:
    headers = options.get("headers")
    try:
        context = InvocationContext.from_headers(headers if isinstance(headers, Mapping) else {})
    except InvocationError as error:
        return str(error)
    keys = runtime_of(app).settings.context_keys
    if keys and keys.first_for(context.tenant_id, context.caller_persona) is None:
        return "no key of audit_context_keys may sign for its tenant and persona"
    return None


def _once_fault(schedule: Any, options: Mapping[str, Any]) -> str | None:
    once = options.get(ONCE_OPTION)
    if once is None or once is False:
        return None
    if once is not True:
        return f"once_per_tick must be True or False, got {type(once).__name__}"
    if isinstance(schedule, crontab):
        return None
    return (
        "once_per_tick needs a crontab: two beats never agree on when an interval is due, so each"
        " would have ticks of its own"
    )
