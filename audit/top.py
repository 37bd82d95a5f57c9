"""What ``audit top`` shows: one frame of what runs and of what ended last, as text for a terminal.

A frame is read in bounded time, whatever the length of the history: the oldest open invocations,
and one look back over the newest entries. It says where it has left something out. What is stored
is treated as hostile, as in :mod:`audit.table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.console import Group
from rich.text import Text

from audit.board.line import text
from audit.board.overview import held_leases
from audit.memory.base import AuditMemory, RowFilter
from audit.plain import clean
from audit.row import COMPLETED, AuditRow
from audit.table import age, fitting

#: Entries looked at for the last endings.
LOOK: Final = 1_000

_GAP: Final = 2
_RUNNING: Final = (
    ("AGE", 7), ("SKILL", 24), ("LEASE", 5), ("REQUEST", 26), ("PERSONA", 20), ("WORKER", 26),
    ("TENANT", 36),
)  # fmt: skip
_ENDED: Final = (
    ("AGO", 7), ("OUTCOME", 7), ("SKILL", 24), ("MS", 8), ("REASON", 16), ("REQUEST", 26),
    ("ERROR", 40), ("TENANT", 36),
)  # fmt: skip
_STYLES: Final = {
    "success": "green",
    "error": "red",
    "panic": "bold red",
    "timeout": "yellow",
    "lost": "bold red",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """What the memory held at one moment.

    Attributes:
        now: when, by this machine's clock.
        running: started rows of what is open, the oldest first.
        total: how many are open in all.
        held: of each process that these rows name, whether its lease is held.
        ended: completed rows, the newest first.
        damaged: entries looked at that are no row.
    """

    now: datetime
    running: tuple[AuditRow, ...]
    total: int
    held: dict[str, bool]
    ended: tuple[AuditRow, ...]
    damaged: int


def read_frame(
    memory: AuditMemory, now: datetime, *, tenant_id: str | None = None, running: int, ended: int
) -> Frame:
    """One frame.

    Args:
        memory: what is asked.
        now: aware.
        tenant_id: whose; ``None`` for all.
        running: so many of the open ones, 1 or more.
        ended: so many endings, 1 or more.

    Raises:
        AuditMemoryError: the memory did not answer.
    """
    still_open = memory.open_page(tenant_id, running)
    page = memory.page(RowFilter(tenant_id=tenant_id, kind=COMPLETED), most=ended, look=LOOK)
    return Frame(
        now=now,
        running=still_open.rows,
        total=still_open.total,
        held=held_leases(memory, still_open.rows),
        ended=page.rows,
        damaged=len(page.damaged),
    )


def as_text(
    frame: Frame | None, width: int, trouble: str = "", now: datetime | None = None
) -> Group:
    """A frame as lines of at most ``width`` cells.

    Args:
        frame: the last one that could be read; ``None`` where none ever could.
        width: of the terminal.
        trouble: why there is no newer one.
        now: what ages are counted from; without it the frame's own time.
    """
    lines: list[Text] = []
    if trouble:
        lines.append(Text(_plain(f"No newer picture: {trouble}"), style="bold red"))
    if frame is not None:
        lines += _lines(frame, width, now or frame.now)
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _lines(frame: Frame, width: int, now: datetime) -> list[Text]:
    left_out = frame.total - len(frame.running)
    more = f", {left_out} younger ones left out" if left_out > 0 else ""
    damaged = f", entries that are no row: {frame.damaged}" if frame.damaged else ""
    seen = f"{frame.now:%H:%M:%S}"
    return [
        Text(f"Running: {frame.total}{more}   (seen at {seen} UTC)", style="bold"),
        *_table(_RUNNING, (_running_cells(frame, row, now) for row in frame.running), width),
        Text(""),
        Text(f"Last endings: {len(frame.ended)}{damaged}", style="bold"),
        *_table(_ENDED, (_ended_cells(row, now) for row in frame.ended), width),
    ]


def _running_cells(frame: Frame, row: AuditRow, now: datetime) -> Sequence[object]:
    worker = text(row.meta.get("worker"))
    held = frame.held.get(worker or "", False)
    said = row.payload.get
    return (
        age(row.ts, now),
        said("skill_id"),
        "held" if held else "lost",
        said("request_id"),
        said("caller_persona"),
        worker,
        said("tenant_id"),
    )


def _ended_cells(row: AuditRow, now: datetime) -> Sequence[object]:
    said = row.payload.get
    return (
        age(row.ts, now),
        said("outcome"),
        said("skill_id"),
        said("duration_ms"),
        row.meta.get("reason"),
        said("request_id"),
        said("error_message"),
        said("tenant_id"),
    )


def _table(
    columns: Sequence[tuple[str, int]], rows: Iterable[Sequence[object]], width: int
) -> list[Text]:
    widths = list(fitting([wide for _, wide in columns], width))
    titles = [Text(title, style="dim") for title, _ in columns]
    cells = [[_cell(value) for value in row] for row in rows]
    return [_joined(line, widths) for line in (titles, *cells)]


def _cell(value: object) -> Text:
    shown = _plain(value)
    return Text(shown, style=_STYLES.get(shown, ""))


def _joined(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    for cell, wide in zip(cells, widths, strict=False):
        cell.truncate(wide, overflow="ellipsis", pad=True)
    line = Text(" " * _GAP).join(cells[: len(widths)])
    line.rstrip()
    return line


def _plain(value: object) -> str:
    return "-" if value is None or value == "" else clean(str(value))
