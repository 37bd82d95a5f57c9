"""``audit copy``: the rows of one memory into another, resumable, held against the ledger.

With ``--json`` one object a line: what became of each tenant, and the verdict last. A bar on
standard error tells how far it is, where that is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from audit.cli_options import MEMORY_URL, tenant_option
from audit.cli_verify import known_keys
from audit.copying.copy import Copied, Copy
from audit.errors import AuditError, MemoryUrlError
from audit.ledger.claims import Trust
from audit.memory import AuditMemory, open_memory
from audit.memory.base import order_of
from audit.plain import clean
from audit.settings import AuditSettings
from audit.terminal import echo, settings_of

_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
_NEW_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
#: Seconds that a call may take at least: one reply holds a page of rows.
_TIMEOUT: Final = 10.0


@click.command()
@click.option(
    "--from",
    "source_url",
    metavar="URL",
    help="Read this memory; the one that --memory or the settings name unless given.",
)
@click.option("--to", "target_url", metavar="URL", required=True, help="Write into this memory.")
@tenant_option
@click.option(
    "--ledger",
    metavar="DIR",
    type=_FOLDER,
    help="The ledger of the source; that of AUDIT_LEDGER_DIR unless given.",
)
@click.option(
    "--to-ledger",
    metavar="DIR",
    type=_NEW_FOLDER,
    help="Copy the ledger to this new folder too, for a keeper that seals the target.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@click.pass_context
def copy(
    ctx: click.Context,
    source_url: str | None,
    target_url: str,
    tenant_id: str | None,
    ledger: Path | None,
    to_ledger: Path | None,
    as_json: bool,
) -> None:
    """Copy all rows into another memory.

    Their stored bytes stay as they are. The target must be empty, or hold the first rows of the
    source and nothing else of its tenants: then the copy goes on behind them. So run it again after
    it was interrupted, or to add what has come since. Every row is read back. Where there is a
    ledger, all sealed rows are held against it, and those that were trimmed from the source are
    read from it.

    Exit status: 0 all is copied, 1 some tenant's rows are not, or are not what was sealed, 2 wrong
    usage.

    \b
    Example:
      celery -A tasks audit copy --to postgresql://skill_host@db/audit
    """
    settings = settings_of(ctx)
    folder = ledger or (Path(settings.ledger_dir) if settings.ledger_dir else None)
    if to_ledger is not None and folder is None:
        raise click.UsageError("--to-ledger needs a ledger: give --ledger DIR as well")
    if to_ledger is not None and tenant_id is not None:
        raise click.UsageError("a ledger goes along whole: give --to-ledger or --tenant")
    source = _open(ctx, settings, source_url or ctx.meta[MEMORY_URL], "--from")
    with _bar(as_json) as bar:
        done = _told(
            Copy(
                source=source,
                target=_open(ctx, settings, target_url, "--to"),
                ledger=folder,
                trust=Trust(()) if folder is None else _trust(settings, folder),
                folder=to_ledger,
                tenant_id=tenant_id,
                told=_Bar(bar, source).told,
            ),
            as_json,
            bar,
        )
    ctx.exit(0 if done else 1)


def _open(ctx: click.Context, settings: AuditSettings, url: str | None, option: str) -> AuditMemory:
    try:
        memory = open_memory(
            url or settings.memory_url, timeout=max(_TIMEOUT, settings.emit_timeout)
        )
    except MemoryUrlError as error:
        if url is None:
            raise
        raise click.BadParameter(clean(str(error)), param_hint=f"'{option}'") from error
    ctx.call_on_close(memory.close)
    return memory


def _trust(settings: AuditSettings, folder: Path) -> Trust:
    keys, prefix, _ = known_keys(settings, folder, (), own=False)
    return Trust(keys, prefix)


# --- telling --------------------------------------------------------------------------------------


def _told(work: Copy, as_json: bool, bar: Progress | None) -> bool:
    """Do it and say what became of it; whether all is right."""
    found: list[Copied] = []
    fault: AuditError | None = None
    try:
        for copied in work.run():
            found.append(copied)
            with _out_of_the_way(bar):
                echo(_json(copied) if as_json else _line(copied))
    except AuditError as error:
        fault = error
    right = fault is None and all(copied.fault is None for copied in found)
    with _out_of_the_way(bar):
        if fault is not None:
            click.echo(clean(f"Error: {fault}"), err=True)
        echo(_verdict(work, found, right, as_json))
    return right


def _json(copied: Copied) -> str:
    fault = None if copied.fault is None else clean(str(copied.fault))
    return json.dumps(
        {
            "type": "tenant",
            "tenant": copied.tenant_id,
            "rows": copied.rows,
            "new": copied.new,
            "sealed": copied.sealed,
            "fault": fault,
        }
    )


def _line(copied: Copied) -> str:
    if copied.fault is not None:
        return clean(f"NOT COPIED {copied.tenant_id}: {copied.fault}")
    held = "not verified against a ledger"
    if copied.sealed is not None:
        held = f"{copied.sealed:,} of them are as they were sealed"
    return clean(f"{copied.tenant_id}: rows {copied.rows:,}, new {copied.new:,}; {held}")


def _verdict(work: Copy, found: list[Copied], right: bool, as_json: bool) -> str:
    facts: dict[str, Any] = {
        "verdict": "copied" if right else "not copied",
        "rows": sum(copied.rows for copied in found),
        "new": sum(copied.new for copied in found),
        "faults": sum(copied.fault is not None for copied in found),
    }
    if as_json:
        return json.dumps({"type": "verdict", **facts})
    names = f"{work.source.name} to {work.target.name}"
    counts = f"rows {facts['rows']:,}, new {facts['new']:,}, tenants at fault {facts['faults']}"
    return clean(f"{facts['verdict'].upper()} {names}: {counts}")


@contextmanager
def _bar(as_json: bool) -> Iterator[Progress | None]:
    """A bar on standard error; ``None`` where that is no terminal, or a program reads."""
    console = Console(stderr=True)
    if as_json or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeElapsedColumn(),
    )
    # What is printed beside it goes out as it is, not through the bar.
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        yield bar


@contextmanager
def _out_of_the_way(bar: Progress | None) -> Iterator[None]:
    """A line may be printed where the bar stands."""
    if bar is not None:
        bar.stop()
    yield
    if bar is not None:
        bar.start()


class _Bar:
    """Moves the bar: how far the source's positions have come, for nobody counts its rows first.

    Args:
        bar: it, if there is one.
        source: whose positions.
    """

    def __init__(self, bar: Progress | None, source: AuditMemory) -> None:
        self._bar = bar
        self._source = source
        self._tenant_id = ""
        self._first = 0

    def told(self, tenant_id: str, rows: int, position: str) -> None:
        """After each page."""
        if self._bar is None:
            return
        at = order_of(position)[0]
        if tenant_id != self._tenant_id:
            self._begin(self._bar, tenant_id, at)
        self._bar.update(self._bar.task_ids[0], completed=at - self._first, rows=rows)

    def _begin(self, bar: Progress, tenant_id: str, at: int) -> None:
        """One tenant's bar in the place of the one before."""
        for task in bar.task_ids:
            bar.remove_task(task)
        last = order_of(self._source.last_position(tenant_id) or str(at))[0]
        bar.add_task(clean(tenant_id), total=max(1, last - at), rows=0)
        self._tenant_id, self._first = tenant_id, at
