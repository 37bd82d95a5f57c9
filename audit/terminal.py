"""What the commands share: the memory they ask, and how rows come out, on a terminal or in a pipe.

With ``--json`` standard output holds the very bytes that are stored, one row a line.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from audit.cli_options import MEMORY_URL
from audit.errors import MemoryUrlError
from audit.ledger.archive import Archive, read_through
from audit.ledger.folder import LedgerFolder
from audit.memory import AuditMemory, open_memory
from audit.memory.base import RowFilter
from audit.plain import clean
from audit.row import AuditRow
from audit.settings import AuditSettings
from audit.table import Column, Table

as_json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print the stored rows unchanged, one a line."
)


# --- asking -------------------------------------------------------------------------------------


def settings_of(ctx: click.Context) -> AuditSettings:
    """The settings of the Celery application that the command line names."""
    return AuditSettings.read(ctx.obj.app.conf, os.environ)


def memory_of(ctx: click.Context, at_most: float = math.inf) -> AuditMemory:
    """The memory that ``--memory`` or the settings name, closed when the command ends.

    Args:
        at_most: seconds a call may take, where the settings allow more.
    """
    settings = settings_of(ctx)
    given: str | None = ctx.meta[MEMORY_URL]
    try:
        timeout = min(settings.emit_timeout, at_most)
        memory = open_memory(given or settings.memory_url, timeout=timeout)
    except MemoryUrlError as error:
        if given is None:
            raise
        raise click.BadParameter(clean(str(error)), param_hint="'--memory'") from error
    ctx.call_on_close(memory.close)
    return memory


def stored_rows(
    ctx: click.Context, wanted: RowFilter, memory: AuditMemory | None = None
) -> Iterator[AuditRow]:
    """The rows that pass, from the ledger where they were trimmed from the memory."""
    memory, folder = memory or memory_of(ctx), settings_of(ctx).ledger_dir
    if folder is None:
        return memory.select(wanted)
    return read_through(memory, Archive(LedgerFolder(Path(folder))), wanted)


# --- printing -----------------------------------------------------------------------------------


def print_rows(
    ctx: click.Context, rows: Iterable[AuditRow | None], columns: Sequence[Column], as_json: bool
) -> None:
    """Print rows as they come; a ``None`` among them says that there is none just now."""
    if as_json:
        print_stored(rows)
    else:
        _print_table(Table(columns, console_of(ctx)), rows)


def print_stored(rows: Iterable[AuditRow | None]) -> None:
    """Print the stored bytes, one row a line."""
    for row in rows:
        if row is not None:
            click.echo(row.to_bytes())  # flushes, too


def echo(text: str) -> None:
    """Print a line, and flush; what the terminal's encoding lacks is escaped."""
    click.echo(text.encode(sys.stdout.encoding, "backslashreplace"))


def _print_table(table: Table, rows: Iterable[AuditRow | None]) -> None:
    # The titles wait for the first answer, so that a memory out of reach leaves no empty table.
    coming = iter(rows)
    row = next(coming, None)
    echo(table.titles())
    if row is not None:
        echo(table.line(row))
    for row in coming:
        if row is not None:
            echo(table.line(row))


def console_of(ctx: click.Context) -> Console | None:
    """The terminal that standard output is; ``None`` where it is none."""
    if not sys.stdout.isatty():
        return None
    return Console(color_system=None if ctx.obj.no_color else "auto", highlight=False)
