"""How the pages show what rows hold, as text; escaping is the templates' work.

What is stored is treated as hostile: nothing invisible passes, and a trace id becomes a part of a
link only where it is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Final

from audit.board.line import InvocationLine, LineKind
from audit.plain import clean
from audit.row import AuditRow
from audit.table import SHORT_KIND
from tasks.pages.filters import Filters

_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_BOUNDS: Final = {"lower_bound": "≥ ", "upper_bound": "≤ "}
NOTHING: Final = "-"
#: What a trace link's template holds in the place of the trace id.
PLACE: Final = "{trace_id}"


def word(value: object) -> str:
    """Any value on one line."""
    if value is None or value == "":
        return NOTHING
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def moment(value: datetime | str | None) -> str:
    """A moment in UTC, to the second, without the zone."""
    if value is None:
        return NOTHING
    text = value.isoformat() if isinstance(value, datetime) else value
    return clean(text[:19].replace("T", " "))


def age(seconds: float | None) -> str:
    """A stretch of time in its two largest units: ``3m 12s``."""
    if seconds is None:
        return NOTHING
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60}m"
    if minutes:
        return f"{minutes}m {whole % 60}s"
    return f"{whole}s"


def milliseconds(value: float | None) -> str:
    """A duration with its unit; a fraction only of short ones that have one."""
    if value is None:
        return NOTHING
    digits = 0 if abs(value) >= 10 or value == int(value) else 1
    return f"{value:,.{digits}f} ms"


def emit(value: float | None) -> str:
    """How long an emit took, by two clocks, of which the store's knows whole milliseconds alone."""
    if value is not None and value < 1:
        return "under 1 ms" if value > -1 else "the clocks differ"
    return milliseconds(value)


def duration(line: InvocationLine) -> str:
    """How long an invocation took; where nobody measured it, that it is a bound."""
    if line.duration_ms is None:
        return NOTHING
    return f"{_BOUNDS.get(line.duration or '', '')}{line.duration_ms:,} ms"


def kind(row: AuditRow) -> str:
    """The kind of a row, short where it is of an invocation."""
    return clean(row.kind.removeprefix(SHORT_KIND))


def fields(row: AuditRow) -> list[tuple[str, str]]:
    """Every field of a row, by name."""
    own = {"kind": row.kind, "ts": row.ts, "schema": row.schema, **row.payload}
    more = {f"meta.{name}": value for name, value in row.meta.items()}
    return [(clean(name), word(value)) for name, value in (own | more).items()]


def stored(entry: bytes) -> str:
    """The stored bytes of a row as text."""
    return clean(entry.decode("utf-8", "replace"))


def trace_link(template: str | None, trace_id: str | None) -> str | None:
    """Where the trace is shown; ``None`` without a template, or where that is no trace id."""
    if template is None or trace_id is None or not _TRACE_ID.fullmatch(trace_id):
        return None
    return template.replace(PLACE, trace_id)


def plural(count: int, one: str, many: str = "") -> str:
    """A number with its word."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def state(line: InvocationLine) -> str:
    """Where a line stands: its outcome where it has ended, else what kind of line it is."""
    if line.kind is LineKind.LATE:
        return f"late {line.outcome or ''}".strip()
    if line.outcome is not None:
        return str(line.outcome)
    return {LineKind.STARTED: "started", LineKind.CLOSED: "completed"}.get(
        line.kind, str(line.kind)
    )


def invocation(reverse_url: Callable[..., str], request_id: str) -> str:
    """The address of the page of an invocation, whatever its id is made of."""
    return reverse_url("audit-invocation", request_id)


def query(filters: Filters, **more: str) -> str:
    """The filters, and ``more`` of them, as the query of a link."""
    return filters.query(**more)
