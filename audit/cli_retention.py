"""``audit prune``: old rows are removed for good, hashes and proofs stay."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from audit.cli_ledger import sealer_of
from audit.cli_options import moment, tenant_option
from audit.errors import AuditError
from audit.invocation import new_request_id
from audit.ledger.folder import LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.pruning import Prune, Pruner
from audit.plain import clean
from audit.terminal import echo, memory_of, settings_of


@click.command()
@click.option(
    "--before",
    metavar="TIME",
    required=True,
    callback=moment,
    help="Rows older than this: RFC 3339, or how long ago (15m, 2h, 7d).",
)
@tenant_option
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.pass_context
def prune(ctx: click.Context, before: datetime, tenant_id: str | None, dry_run: bool) -> None:
    """Remove the bytes of old sealed rows, for good.

    They go from memory and ledger, in bundles of 256 and from the oldest on, as far as all rows of
    a bundle are older and none is of an open invocation. Their hashes stay, so what was proven
    stays proven, and a sealed row (audit.pruned) says what is gone. What an interrupted run has
    left, the next one finishes. A ledger at fault is told, and those of other tenants are pruned.

    Exit status: 0 fine, 1 the ledger of a tenant is damaged or in use, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit prune --before 400d --dry-run
      celery -A tasks audit prune --before 2026-01-01T00:00:00Z
    """
    if before > datetime.now(UTC):
        raise click.UsageError("--before must not lie in the future")
    memory = memory_of(ctx)
    pruner = _pruner(ctx)
    faulty = False
    for tenant in [tenant_id] if tenant_id else memory.tenants():
        try:
            plan = pruner.plan(tenant, before)
            if not dry_run:
                pruner.prune(plan)
        except AuditError as error:
            memory.check()  # where nothing answers, no tenant is at fault
            click.echo(clean(f"Error: {tenant}: {error}"), err=True)
            faulty = True
        else:
            echo(_line(plan, dry_run))
    ctx.exit(1 if faulty else 0)


def _pruner(ctx: click.Context) -> Pruner:
    settings, memory, worker = settings_of(ctx), memory_of(ctx), new_request_id()
    sealer = sealer_of(settings, memory, worker)
    return Pruner(
        memory,
        LedgerFolder(Path(settings.ledger_dir or "")),
        origin=settings.ledger_origin,
        keys=LedgerKeys.load(settings.ledger_keys, settings.ledger_origin),
        seal=sealer.round,
        worker=worker,
    )


def _line(plan: Prune, dry_run: bool) -> str:
    verb = "would go" if dry_run else "removed"
    left = f"rows {plan.gone} to {plan.rows - 1}" if plan.left else "nothing"
    return f"{plan.tenant_id}: {left} {verb}; rows gone before: {plan.gone}"
