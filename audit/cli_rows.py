"""``audit running``, ``list``, ``show`` and ``tail``: the rows, on a terminal or in a pipe.

With ``--json`` standard output holds the very bytes that are stored, one row a line, and nothing
else; whatever is to be said beside the rows goes to standard error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import click

from audit.cli_options import moment, reading, tenant_option
from audit.memory import AuditMemory
from audit.memory.base import RowFilter
from audit.row import COMPLETED, LATE, REFUSED, STARTED, AuditRow, Outcome
from audit.system_rows import SYSTEM_KINDS
from audit.table import ROW_COLUMNS, SHORT_KIND, block, running_columns
from audit.terminal import (
    as_json_option,
    echo,
    memory_of,
    print_rows,
    print_stored,
    stored_rows,
)

_LONG_KINDS: Final = (STARTED, COMPLETED, LATE, REFUSED)
_KINDS: Final = {
    **{kind.removeprefix(SHORT_KIND): kind for kind in _LONG_KINDS},
    **{kind: kind for kind in (*_LONG_KINDS, *sorted(SYSTEM_KINDS))},
}
_OUTCOMES: Final = {outcome.value: outcome.value for outcome in Outcome}
_Command = TypeVar("_Command", bound=Callable[..., Any])


# --- reading options ----------------------------------------------------------------------------


def parse_word(text: str, words: Mapping[str, str]) -> str:
    """What one of ``words`` stands for."""
    if text in words:
        return words[text]
    close = get_close_matches(text, words, n=1)
    advice = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(words)}"
    raise ValueError(f"{text!r} is unknown, {advice}")


# Named as RowFilter names its parts.
_FILTERS: Final = (
    tenant_option,
    click.option(
        "--since",
        metavar="TIME",
        callback=moment,
        help="From this time on: RFC 3339, or how long ago (15m, 2h, 7d).",
    ),
    click.option("--until", metavar="TIME", callback=moment, help="Before this time."),
    click.option(
        "--kind",
        metavar="KIND",
        callback=reading(lambda text: parse_word(text, _KINDS)),
        help="started, completed, late or refused; the full name of the kind will do too.",
    ),
    click.option("--skill", "skill_id", metavar="ID", help="Of this skill."),
    click.option(
        "--outcome",
        metavar="OUTCOME",
        callback=reading(lambda text: parse_word(text, _OUTCOMES)),
        help="success, error, panic or timeout. Only completed and late rows have one.",
    ),
    click.option(
        "--persona",
        "caller_persona",
        metavar="PERSONA",
        help="Called by this persona. Only started and refused rows name theirs.",
    ),
    click.option("--trace", "trace_id", metavar="ID", help="Of this W3C trace."),
    click.option("--request", "request_id", metavar="ID", help="Of this invocation."),
    click.option("--task", "task_id", metavar="ID", help="Of this Celery task id."),
)


def _filters(command: _Command) -> _Command:
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def _wanted(parts: Mapping[str, Any]) -> RowFilter:
    wanted = RowFilter(**parts)
    if wanted.since and wanted.until and wanted.since >= wanted.until:
        raise click.UsageError("--since must lie before --until")
    return wanted


# --- the commands -------------------------------------------------------------------------------


@click.command()
@tenant_option
@as_json_option
@click.pass_context
def running(ctx: click.Context, tenant_id: str | None, as_json: bool) -> None:
    """List what has started and not completed, oldest first.

    \b
    Example:
      celery -A tasks audit running --tenant 550e8400-e29b-41d4-a716-446655440000
    """
    rows = sorted(memory_of(ctx).running(tenant_id), key=lambda row: row.ts)
    print_rows(ctx, rows, running_columns(datetime.now(UTC)), as_json)


@click.command(name="list")
@_filters
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=100,
    show_default=True,
    help="Only the newest N; 0 for all.",
)
@as_json_option
@click.pass_context
def list_(ctx: click.Context, /, limit: int, as_json: bool, **parts: Any) -> None:
    """List rows, oldest first.

    \b
    Example:
      celery -A tasks audit list --since 2h --kind completed --outcome error
    """
    rows = stored_rows(ctx, _wanted(parts))
    print_rows(ctx, _newest(rows, limit) if limit else rows, ROW_COLUMNS, as_json)


@click.command()
@click.argument("request_id")
@as_json_option
@click.pass_context
def show(ctx: click.Context, request_id: str, as_json: bool) -> None:
    """Show all rows of one invocation, with every field.

    \b
    Example:
      celery -A tasks audit show 01KB8Z5T3MZJ9Y2V4Q6R8S0TAW
    """
    rows = list(stored_rows(ctx, RowFilter(request_id=request_id)))
    if not rows:
        raise click.ClickException(
            f"no invocation {request_id!r} in this memory; rows of a Celery task id are found with"
            " `list --task`"
        )
    if as_json:
        print_stored(rows)
    else:
        echo("\n\n".join(map(block, rows)))


@click.command()
@_filters
@click.option(
    "--last",
    type=click.IntRange(min=0),
    metavar="N",
    default=10,
    show_default=True,
    help="Begin with the last N that are there already.",
)
@as_json_option
@click.pass_context
def tail(ctx: click.Context, /, last: int, as_json: bool, **parts: Any) -> None:
    """Print the last rows, then new ones until Ctrl-C.

    \b
    Example:
      celery -A tasks audit tail --skill ops.triage_alert --last 20
    """
    wanted = _wanted(parts)
    with suppress(KeyboardInterrupt):
        print_rows(ctx, _last_and_new(memory_of(ctx), wanted, last), ROW_COLUMNS, as_json)


# --- asking -------------------------------------------------------------------------------------


def _newest(rows: Iterable[AuditRow], limit: int) -> Sequence[AuditRow]:
    """The last ``limit`` of ``rows``; no row is left out without a word."""
    kept: deque[AuditRow] = deque(maxlen=limit)
    count = 0
    for row in rows:
        kept.append(row)
        count += 1
    if count > limit:
        click.echo(f"older rows left out: {count - limit}; --limit 0 prints all", err=True)
    return kept


def _last_and_new(memory: AuditMemory, wanted: RowFilter, last: int) -> Iterator[AuditRow | None]:
    """The ``last`` rows and all that arrive, each of them once; ``None`` while nothing does.

    The place to follow from is taken first. A row that arrives while the last ones are read then
    comes both ways, and none can fall between.
    """
    arriving = memory.follow(wanted)
    stored = deque(memory.select(wanted) if last else (), maxlen=last)
    yield from stored
    printed = {(row.tenant_id, row.position) for row in stored}
    for row in arriving:
        if row is None or (row.tenant_id, row.position) not in printed:
            yield row
