"""Rows as text for people: one line a row, or every field of one row.

What is stored is treated as hostile: no control character and no invisible one leaves this module,
and nothing in a row is read as markup. A line is cut to the width of a terminal; where the output
is none, it is whole, its cells parted by one tab.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.text import Text

from audit.plain import clean
from audit.row import AuditRow

#: Kinds of this module are shown by what follows.
SHORT_KIND: Final = "skill.invoked_"

_GAP: Final = "  "
_LEAST: Final = 8
_FIELD_WIDTH: Final = len("meta.parent_request_id")
_NOTHING: Final = "-"
_BOUNDS: Final = {"lower_bound": ">=", "upper_bound": "<="}
_STYLES: Final = {"success": "green", "error": "red", "panic": "bold red", "timeout": "yellow"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, its width on a terminal in cells, and what it shows of a row."""

    title: str
    width: int
    cell: Callable[[AuditRow], object]
    styles: Mapping[str, str] | None = None


TIME: Final = Column("TIME", 20, lambda row: _seconds(row.ts))
REQUEST: Final = Column("REQUEST", 26, lambda row: row.payload.get("request_id"))
SKILL: Final = Column("SKILL", 24, lambda row: row.payload.get("skill_id"))
PERSONA: Final = Column("PERSONA", 20, lambda row: row.payload.get("caller_persona"))
TENANT: Final = Column("TENANT", 36, lambda row: row.payload.get("tenant_id"))
TASK: Final = Column("TASK", 36, lambda row: row.meta.get("task_id"))

#: Of any rows, the most telling first: a terminal shows as many as fit.
ROW_COLUMNS: Final = (
    TIME,
    REQUEST,
    Column("KIND", 9, lambda row: row.kind.removeprefix(SHORT_KIND)),
    Column("OUTCOME", 7, lambda row: row.payload.get("outcome"), _STYLES),
    SKILL,
    Column("REASON", 16, lambda row: row.meta.get("reason")),
    Column("MS", 8, lambda row: _duration(row)),
    Column("ERROR", 40, lambda row: row.payload.get("error_message")),
    PERSONA,
    TENANT,
    TASK,
)


def running_columns(now: datetime) -> tuple[Column, ...]:
    """The columns of what is running at ``now`` (aware)."""
    return (
        Column("AGE", 7, lambda row: age(row.ts, now)),
        TIME,
        REQUEST,
        SKILL,
        Column("VERSION", 10, lambda row: row.payload.get("version")),
        PERSONA,
        TENANT,
        TASK,
        Column("WORKER", 26, lambda row: row.meta.get("worker")),
    )


class Table:
    """Lines of text under titles.

    Args:
        columns: what to show, the most important first.
        console: the terminal, asked for its width at every line; ``None`` where there is none.
    """

    def __init__(self, columns: Sequence[Column], console: Console | None = None) -> None:
        self._columns = columns
        self._console = console

    def titles(self) -> str:
        """The line above the rows."""
        return self._line([(column.title, "bold") for column in self._columns])

    def line(self, row: AuditRow) -> str:
        """The line of ``row``."""
        return self._line([_styled(column, row) for column in self._columns])

    def _line(self, cells: Sequence[tuple[str, str]]) -> str:
        if self._console is None:
            return "\t".join(text for text, _ in cells)
        widths = fitting([column.width for column in self._columns], self._console.width)
        # Text is never parsed for markup, and soft_wrap keeps rich from folding what fits.
        line = Text(_GAP).join(map(_cut, cells, widths))
        line.rstrip()
        with self._console.capture() as captured:
            self._console.print(line, soft_wrap=True, end="")
        return captured.get()


def fitting(widths: Sequence[int], room: int) -> Iterator[int]:
    """The widths of the columns that have room, from the left; the last of them may be cut."""
    for number, width in enumerate(widths):
        if number and room < min(width, _LEAST):
            return
        yield max(1, min(width, room))
        room -= width + len(_GAP)


def block(row: AuditRow) -> str:
    """Every field of ``row``, one a line."""
    fields = {
        "kind": row.kind,
        "ts": row.ts,
        "schema": row.schema,
        **row.payload,
        **{f"meta.{name}": value for name, value in row.meta.items()},
    }
    return "\n".join(
        f"{clean(name):<{_FIELD_WIDTH}}{_GAP}{_text(value)}" for name, value in fields.items()
    )


def age(ts: str, now: datetime) -> str:
    """How long before ``now`` the moment ``ts`` was, in its two largest units: ``3m12s``."""
    try:
        seconds = max(0, int((now - datetime.fromisoformat(ts)).total_seconds()))
    except (ValueError, TypeError):  # no time that we wrote
        return _NOTHING
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    if minutes:
        return f"{minutes}m{seconds % 60:02}s"
    return f"{seconds}s"


def _styled(column: Column, row: AuditRow) -> tuple[str, str]:
    text = _text(column.cell(row))
    return text, (column.styles or {}).get(text, "")


def _cut(cell: tuple[str, str], width: int) -> Text:
    text = Text(*cell)
    text.truncate(width, overflow="ellipsis", pad=True)
    return text


def _text(value: object) -> str:
    if value is None or value == "":
        return _NOTHING
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _seconds(ts: object) -> str:
    """RFC 3339 without the fraction: what ``--since`` takes to begin at this very row."""
    return f"{str(ts)[:19]}Z"


def _duration(row: AuditRow) -> object:
    milliseconds = row.payload.get("duration_ms")
    bound = _BOUNDS.get(str(row.meta.get("duration")), "")
    return f"{bound}{milliseconds}" if bound else milliseconds
