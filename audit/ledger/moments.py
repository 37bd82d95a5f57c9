"""When an entry was written, and of which invocation, for whoever removes old ones.

Somebody who writes past the emit can put anything into a memory, and it is sealed like a row. Such
an entry keeps nothing from going: it counts as old as the next one behind it that says when it was
written, so it goes when that one would go, and stays while there is none. So an entry never goes
before what stood behind it may go. One that says a time is believed: one that names a time to come
stays until then, and so does what stands behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from audit.errors import RowError
from audit.row import AuditRow

#: What :func:`judged` says of an entry.
Judged = bool | None


def moment_of(stored: bytes) -> datetime | None:
    """When an entry says that it was written; ``None``: it is no row, or says no such time."""
    row = _row(stored)
    return None if row is None else _moment(row.ts)


def judged(
    entries: Iterable[bytes], before: datetime, still_open: Collection[str] = ()
) -> Iterator[Judged]:
    """Of each entry whether it may go, until the first one that may not.

    Args:
        entries: stored bytes.
        before: a row goes that is older.
        still_open: the request_ids of invocations whose rows stay.

    Returns:
        ``True``: it may; ``None``: it says nothing, so that the next one decides.
    """
    for stored in entries:
        row = _row(stored)
        moment = None if row is None else _moment(row.ts)
        if row is None or moment is None:
            yield None
        elif moment >= before or str(row.payload.get("request_id")) in still_open:
            return
        else:
            yield True


def may_go(found: list[Judged]) -> int:
    """How many of the first entries may go: up to the last one that says so itself."""
    return next((at for at in range(len(found), 0, -1) if found[at - 1]), 0)


def _row(stored: bytes) -> AuditRow | None:
    with suppress(RowError):
        return AuditRow.from_bytes(stored)
    return None


def _moment(ts: Any) -> datetime | None:
    """A time with its zone; whatever a row says instead is none."""
    with suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(ts)
        return None if moment.tzinfo is None else moment
    return None
