"""``audit keep`` and ``audit reconcile``: the keeper behind the hosts, as a program.

``keep`` goes on until SIGINT or SIGTERM and tells what it does, a line each; ``reconcile`` does a
keeper's work once. What goes wrong meanwhile is in the log, on standard error.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from audit.cli_ledger import sealer_of
from audit.invocation import new_request_id
from audit.keeper import Keeper, Round
from audit.keeper_http import PROBE_SECONDS, Exporting, Pages, Proof, serving
from audit.ledger.folder import LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.retention import HotRetention
from audit.ledger.witnessing import Witnessing, witnesses_of
from audit.memory import AuditMemory
from audit.row import timestamp
from audit.settings import AuditSettings
from audit.spool import Spool
from audit.table import ROW_COLUMNS
from audit.terminal import as_json_option, echo, memory_of, print_rows, settings_of

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Tell in JSON, one object a line.")
@click.pass_context
def keep(ctx: click.Context, as_json: bool) -> None:
    """Replay, reconcile and seal until SIGINT or SIGTERM.

    Several keepers may run, one leads and the others take over when it ends. Each of them replays
    what waits in the spool of its own host. With AUDIT_LEDGER_DIR set, the one that leads seals the
    rows; keepers of one memory share that folder.

    Metrics and health are served at AUDIT_KEEPER_LISTEN, as /metrics, /healthz and /readyz.

    \b
    Example:
      celery -A tasks audit keep
    """
    holder = new_request_id()
    keeper = _keeper(ctx, holder)
    with _served(ctx, keeper, holder), signals_to_end() as stop:
        keeper.keep(stop, _Teller(holder, as_json).tell)


@click.command()
@as_json_option
@click.pass_context
def reconcile(ctx: click.Context, as_json: bool) -> None:
    """Close what is abandoned now, and list what was closed.

    Takes as long as a lease must be seen absent: two thirds of AUDIT_LEASE_SECONDS. What it closes
    is counted over OTLP, where that is set up.

    \b
    Example:
      celery -A tasks audit reconcile
    """
    holder = new_request_id()
    with Exporting(holder, scraped=False):
        sweep = _keeper(ctx, holder).reconcile()
    print_rows(ctx, sweep.closed, ROW_COLUMNS, as_json)
    if sweep.suspects:
        click.echo(
            f"processes that are silent, but not for long enough: {sweep.suspects}; run it again",
            err=True,
        )


@contextmanager
def signals_to_end() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set."""
    stop = threading.Event()

    def end(*_: object) -> None:
        # By a thread: whoever waits for the event may hold its lock just now, and is us.
        threading.Thread(target=stop.set).start()

    before = {signum: signal.signal(signum, end) for signum in _SIGNALS}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _served(ctx: click.Context, keeper: Keeper, holder: str) -> Iterator[None]:
    """Metrics and health of a keeper, where its settings want them, for as long as it keeps."""
    settings = settings_of(ctx)
    exporting = Exporting(holder, scraped=settings.keeper_listen is not None)
    with exporting:
        if settings.keeper_listen is None:
            yield
            return
        # Of its own, and impatient: a probe that waits longer than that counts as failed.
        memory = memory_of(ctx, at_most=PROBE_SECONDS)
        pages = Pages(exporting.text, lambda: keeper.late_seconds, Proof(memory).reason)
        with serving(settings.keeper_listen, pages):
            yield


def _keeper(ctx: click.Context, holder: str) -> Keeper:
    settings, memory = settings_of(ctx), memory_of(ctx)
    return Keeper(
        memory,
        Spool(Path(settings.spool_dir), memory.name),
        holder=holder,
        lease_seconds=settings.lease_seconds,
        sealer=sealer_of(settings, memory, holder) if settings.ledger_dir else None,
        seal_seconds=settings.ledger_seal_seconds,
        duties=_duties(settings, memory),
    )


def _duties(settings: AuditSettings, memory: AuditMemory) -> list[Callable[[], bool]]:
    """What the keeper does beside sealing: cosignatures, and hot retention."""
    duties: list[Callable[[], bool]] = []
    if settings.ledger_dir is None:
        return duties
    folder = LedgerFolder(Path(settings.ledger_dir))
    if settings.ledger_witnesses:
        witnesses = witnesses_of(settings.ledger_witnesses)
        witnessing = Witnessing(
            folder,
            witnesses,
            origin=settings.ledger_origin,
            load_keys=lambda: LedgerKeys.load(settings.ledger_keys, settings.ledger_origin),
        )
        duties.append(witnessing.poke)
    if settings.hot_retention is not None:
        duties.append(HotRetention(memory, folder, seconds=settings.hot_retention).poke)
    return duties


class _Teller:
    """Tells what a round changed; a round that changed nothing is not worth a line."""

    def __init__(self, holder: str, as_json: bool) -> None:
        self._holder = holder
        self._as_json = as_json
        self._leads: bool | None = None

    def tell(self, did: Round) -> None:
        if did.leads != self._leads:
            self._leads = did.leads
            text = f"keeper {self._holder} leads" if did.leads else "another keeper leads"
            self._line(text, event="leads" if did.leads else "follows", keeper=self._holder)
        if did.replayed:
            text = f"spooled rows that reached the memory: {did.replayed}"
            self._line(text, event="replayed", rows=did.replayed)
        closed = [row.request_id for row in did.sweep.closed] if did.sweep else []
        if closed:
            text = f"abandoned invocations closed: {' '.join(closed)}"
            self._line(text, event="closed", request_ids=closed)

    def _line(self, text: str, **event: object) -> None:
        moment = timestamp(datetime.now(UTC))
        echo(json.dumps({"ts": moment, **event}) if self._as_json else f"{moment} {text}")
