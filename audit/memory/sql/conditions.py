"""What a filter asks of the columns, and which part of it an index answers.

Whoever reads goes through rows by an index (:func:`by_index`) in bounded steps; what no index
answers is asked of each row that a step meets. So no statement takes time in proportion to the
history, however rarely a filter lets a row pass.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, case, literal, literal_column, tuple_

from audit.memory.filter import RowFilter
from audit.memory.sql.tables import INVOCATIONS, ROWS, microseconds, written
from audit.row import Outcome

#: How far the clocks of writers and server may differ without a time range losing rows.
SKEW: Final = timedelta(hours=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_GREATEST: Final = 2**63 - 1

#: Written out: a plan that is made before its values are known must see that an index of such rows
#: alone will do.
IS_OPEN: Final = INVOCATIONS.c.state == literal_column("'o'")
_FAILED: Final = ROWS.c.outcome != literal_column(f"'{Outcome.SUCCESS.value}'")


def by_index(wanted: RowFilter) -> list[ColumnElement[bool]]:
    """The part of a filter that an index answers, in the order of the rows."""
    pairs = [
        (ROWS.c.tenant_id, wanted.tenant_id),
        (ROWS.c.request_id, wanted.request_id),
        (ROWS.c.trace_id, wanted.trace_id),
        (ROWS.c.task_id, wanted.task_id),
    ]
    found = [column == written(value) for column, value in pairs if value is not None]
    # Its index begins with the tenant, and has no successes, of which a tenant's rows are full.
    if None not in (wanted.tenant_id, wanted.outcome) and wanted.outcome != Outcome.SUCCESS:
        found += [ROWS.c.outcome == written(str(wanted.outcome)), _FAILED]
    return found


def stored_where(wanted: RowFilter) -> ColumnElement[Any]:
    """The stored bytes of a row that passes; nothing of one that does not."""
    conditions = _all(wanted)
    passing = case((and_(*conditions), ROWS.c.stored)) if conditions else ROWS.c.stored
    return passing.label("stored")


def not_in(column: Any, without: Collection[str]) -> list[ColumnElement[bool]]:
    return [column.not_in([written(tenant) for tenant in without])] if without else []


def floor_of(wanted: RowFilter) -> int:
    """The server's time, in microseconds, before which no row that passes was stored."""
    return 0 if wanted.since is None else microseconds(wanted.since) - SKEW // _MICROSECOND


def at(turn: int, minor: int) -> Any:
    """A place in the order of all rows."""
    # A cursor may come from a memory whose positions are larger than any here.
    turn, minor = min(turn, _GREATEST), min(minor, _GREATEST)
    return tuple_(literal(turn, ROWS.c.turn.type), literal(minor, ROWS.c.minor.type))


def _all(wanted: RowFilter) -> list[ColumnElement[bool]]:
    found = [
        column == written(value)
        for column, value in (
            (ROWS.c.tenant_id, wanted.tenant_id),
            (ROWS.c.kind, wanted.kind),
            (ROWS.c.skill_id, wanted.skill_id),
            (ROWS.c.outcome, wanted.outcome),
            (ROWS.c.caller_persona, wanted.caller_persona),
            (ROWS.c.trace_id, wanted.trace_id),
            (ROWS.c.request_id, wanted.request_id),
            (ROWS.c.task_id, wanted.task_id),
        )
        if value is not None
    ]
    if wanted.since is not None:
        found.append(ROWS.c.moment >= microseconds(wanted.since))
    if wanted.until is not None:
        found.append(ROWS.c.moment < microseconds(wanted.until))
    return found
