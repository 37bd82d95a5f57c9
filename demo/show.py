"""What the demo prints, as text: rows as lines, counts as a table.

A started row says who calls, a completed one how it ended; neither says both. So they share one
column. Colours are for a terminal: ``click.echo`` takes them out for a pipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click

from audit.row import COMPLETED, STARTED, AuditRow, Outcome

ROW_TITLES: Final = (
    f"  {'time (UTC)':12}  {'row':9}  {'skill':21}  {'called by, or ended as':35}  request_id"
)
OPEN: Final = "open"
COLUMNS: Final = ("started", *Outcome, OPEN)

_COLOURS: Final[Mapping[str, str]] = {
    Outcome.SUCCESS: "green",
    Outcome.ERROR: "yellow",
    Outcome.PANIC: "red",
    Outcome.TIMEOUT: "magenta",
}
_WIDTH: Final = 100


def title(text: str, aside: str = "") -> str:
    """A line that begins a chapter."""
    dimmed = click.style(f"  {aside}", dim=True) if aside else ""
    return f"\n{click.style(text, bold=True)}{dimmed}"


def row(found: AuditRow) -> str:
    """One row as one line; a second one repeats the error message where there is one."""
    payload = found.payload
    colour = _COLOURS.get(payload.get("outcome", ""))
    facts = click.style(f"{_facts(found):35}", fg=colour, reset=colour is not None)
    line = (
        f"  {found.ts[11:23]}  {_word(found):9}  {payload['skill_id']:21}"
        f"  {facts}  {found.request_id}"
    )
    message = payload.get("error_message")
    return f"{line}\n{'':27}{click.style(message, dim=True)}" if message else line


def _word(found: AuditRow) -> str:
    return found.kind.removeprefix("skill.invoked_")


def _facts(found: AuditRow) -> str:
    payload, meta = found.payload, found.meta
    if found.kind == COMPLETED:
        return f"{payload['outcome']} / {meta['reason']}, {payload['duration_ms']} ms"
    parent = meta.get("parent_request_id")
    return f"{payload.get('caller_persona')}" + (f", in ..{parent[-6:]}" if parent else "")


def running(rows: Iterable[AuditRow], now: datetime) -> Iterator[str]:
    """Who is running: a line for every started row without its completed one."""
    for found in rows:
        seconds = (now - datetime.fromisoformat(found.ts)).total_seconds()
        yield (
            f"    {found.payload['skill_id']:21}  {found.payload['caller_persona']:20}"
            f"  tenant {found.tenant_id}  for {max(0.0, seconds):.1f} s"
        )


def received(skill_id: str, value: str) -> str:
    """What the caller of a skill got, as text; cut where the line is full."""
    line = f"    {skill_id:21}  {value}"
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


Counts = Mapping[str, Counter[str]]


def count(rows: Iterable[AuditRow]) -> Counts:
    """Per skill: how many were started, ended in each outcome, and are still open."""
    counts: dict[str, Counter[str]] = {}
    for found in rows:
        skill = counts.setdefault(found.payload["skill_id"], Counter())
        if found.kind == STARTED:
            skill.update(("started", OPEN))
        elif found.kind == COMPLETED:
            skill.update((found.payload["outcome"],))
            skill.subtract((OPEN,))
    return counts


def summary(counts: Counts) -> Iterator[str]:
    """The counts as a table, with a line that sums them up."""
    yield _table_line("skill", COLUMNS)
    for skill_id in sorted(counts):
        yield _table_line(skill_id, [counts[skill_id][column] for column in COLUMNS])
    total = sum(counts.values(), Counter[str]())
    yield _table_line("together", [total[column] for column in COLUMNS])


def _table_line(head: str, cells: Iterable[Any]) -> str:
    return f"  {head:21}" + "".join(f"{cell:>10}" for cell in cells)


def now() -> datetime:
    """The time, in the zone of the rows."""
    return datetime.now(UTC)
