"""``audit duplicates``: ticks of a beat schedule that ran more than once.

A tick is tenant, skill, schedule and due time. What is found ran under more than one task id: two
messages were sent for it. A redelivery and a retry keep the task id of their first and are no
duplicates.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import click

from audit.cli_options import moment, tenant_option
from audit.memory.base import RowFilter
from audit.row import AuditRow
from audit.schedule import duplicates as find
from audit.table import REQUEST, SKILL, TASK, TENANT, TIME, Column
from audit.terminal import as_json_option, memory_of, print_rows, stored_rows

_COLUMNS: Final = (
    Column("DUE", 27, lambda row: row.meta.get("due")),
    Column("SCHEDULE", 20, lambda row: row.meta.get("schedule")),
    TASK,
    TIME,
    REQUEST,
    SKILL,
    TENANT,
)


@click.command()
@click.option(
    "--since",
    metavar="TIME",
    callback=moment,
    help="Started from this time on: RFC 3339, or how long ago (15m, 2h, 7d).",
)
@tenant_option
@as_json_option
@click.pass_context
def duplicates(
    ctx: click.Context, since: datetime | None, tenant_id: str | None, as_json: bool
) -> None:
    """List the started rows of ticks that ran more than once.

    Two beats send every tick of a crontab twice, with the same due time. They never agree on when
    an interval is due, so two beats on an interval are not found here: they are two schedules.

    Exit status: 0 none, 1 there are some, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit duplicates --since 7d
    """
    memory, wanted = memory_of(ctx), RowFilter(tenant_id=tenant_id, since=since)

    def read() -> Iterable[AuditRow]:
        return stored_rows(ctx, wanted, memory)

    found = list(find(read))
    if found or as_json:
        found.sort(key=_by_tick)
        print_rows(ctx, found, _COLUMNS, as_json)
    ctx.exit(1 if found else 0)


def _by_tick(row: AuditRow) -> tuple[str, str, str]:
    return row.tenant_id, str(row.meta["schedule"]), str(row.meta["due"])
