"""``audit prove``, ``export`` and ``verify-pack``: evidence to give away, and to check.

What is written holds sealed rows only, and was verified with the ledger's own keys before it got
its name. ``verify-pack`` needs neither memory nor ledger: it runs the functions of the single file
that every pack brings along.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

import click

from audit.cli_options import moment, parse_tenant, reading, tenant_option
from audit.errors import (
    AuditError,
    EvidenceError,
    LedgerDamagedError,
    LedgerError,
    MemoryDamagedError,
    RowError,
)
from audit.ledger import pack
from audit.ledger import verify_pack as verifying
from audit.ledger.checkpoint import origin_of
from audit.ledger.durable import replace_file
from audit.ledger.keys import LedgerKeys
from audit.ledger.proof import SUFFIX
from audit.ledger.sealed_log import SealedLog
from audit.memory.base import AuditMemory, RowFilter
from audit.plain import clean
from audit.row import AuditRow
from audit.terminal import echo, memory_of, settings_of, stored_rows

_FILE_MODE: Final = 0o640
#: What may be part of a file's name; request_ids come out of a memory, where anything could stand.
_PLAIN: Final = re.compile("[0-9A-Za-z-]{1,64}")


def _read_keys(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> list[verifying.Key]:
    try:
        return [key for text in texts for key in verifying.read_keys(text)]
    except OSError as error:
        raise click.BadParameter(f"the file cannot be read: {error.strerror}", ctx, param) from None
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command()
@click.argument("request_id")
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Write here; the folder is made where it is missing.",
)
@tenant_option
@click.pass_context
def prove(ctx: click.Context, request_id: str, folder: Path, tenant_id: str | None) -> None:
    """Write the rows of an invocation, each with a proof.

    For each row two files: its stored bytes, and a C2SP tlog-proof, which shows offline that they
    are in the ledger. Needs the ledger and its keys (AUDIT_LEDGER_DIR, AUDIT_LEDGER_KEYS). Where
    several tenants have rows of that request_id, those of each go into a folder of its own.

    Exit status: 0 all rows, 1 some are not sealed yet or cannot be proven, or there is no such
    invocation, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit prove 01KB8Z5T3MZJ9Y2V4Q6R8S0TAW -o evidence
    """
    memory = memory_of(ctx)
    tenants = [tenant_id] if tenant_id else memory.tenants()
    found, faults = _found(ctx, memory, tenants, request_id)
    if not (found or faults) or not _PLAIN.fullmatch(request_id):
        raise click.ClickException(f"no invocation {request_id!r} in this memory")
    for tenant, rows in found.items():
        place = folder / tenant if len(found) > 1 else folder
        try:
            _prove_all(ctx, tenant, rows, place / request_id)
        except AuditError as error:
            faults.append(error if len(found) == 1 else _Unproven(f"tenant {tenant}: {error}"))
    for fault in faults[1:]:
        click.echo(clean(f"Error: {fault}"), err=True)
    if faults:
        raise faults[0]


@click.command()
@click.option(
    "--tenant",
    "tenant_id",
    metavar="UUID",
    required=True,
    callback=reading(parse_tenant),
    help="Of this tenant.",
)
@click.option("--since", metavar="TIME", callback=moment, help="From this time on.")
@click.option("--until", metavar="TIME", callback=moment, help="Before this time.")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="PACK",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write this zip; it must not be there yet.",
)
@click.pass_context
def export(
    ctx: click.Context,
    tenant_id: str,
    since: datetime | None,
    until: datetime | None,
    target: Path,
) -> None:
    """Write an evidence pack of a tenant's sealed rows.

    It holds all rows from the first in that time to the last, what proves them, and the program
    that verifies them. Times are RFC 3339, or how long ago (15m, 2h, 7d); without any the pack
    holds the whole log.

    Exit status: 0 written, 1 there is nothing to write, the ledger is damaged, or rows were wrong
    when they were sealed (the pack is written, and says so), 2 wrong usage.

    \b
    Example:
      celery -A tasks audit export --tenant 550e8400-e29b-41d4-a716-446655440000 \\
          --since 7d -o week.zip
    """
    if since and until and since >= until:
        raise click.UsageError("--since must lie before --until")
    asked = pack.Asked(since=since, until=until, exported_at=datetime.now(UTC), version=_version())
    exported = pack.export(_log(ctx, tenant_id), asked, target)
    echo(
        f"{exported.rows} rows, {exported.first} to {exported.last} of {exported.size} sealed;"
        f" asked for: {exported.asked}"
    )
    for finding in exported.findings:
        click.echo(f"wrong when it was sealed: {clean(finding)}", err=True)
    ctx.exit(1 if exported.findings else 0)


@click.command(name="verify-pack")
@click.argument("target", metavar="PACK", type=click.Path(path_type=Path))
@click.option(
    "--key",
    "keys",
    metavar="VKEY",
    required=True,
    multiple=True,
    callback=_read_keys,
    help="The ledger's verifier key, or a file of it; never one out of the pack.",
)
@click.pass_context
def verify_pack(ctx: click.Context, target: Path, keys: list[verifying.Key]) -> None:
    """Verify an evidence pack; needs no memory and no ledger.

    The very program that lies in the pack as verify_pack.py; its first lines say what is checked.

    Exit status: 0 everything holds, 1 something does not, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit verify-pack week.zip --key skill-host.invalid+8b5a4f2e+AQ...
    """
    if not target.is_file():
        raise click.BadParameter(f"{str(target)!r} is no file", ctx, param_hint="'PACK'")
    report = verifying.verify(target, keys)
    for line in report.lines():
        echo(clean(line))
    ctx.exit(0 if report.passed else 1)


# --- inside ---------------------------------------------------------------------------------------


class _Unproven(EvidenceError):
    """The rows of one tenant of several that cannot be proven."""


def _found(
    ctx: click.Context, memory: AuditMemory, tenants: list[str], request_id: str
) -> tuple[dict[str, list[AuditRow]], list[AuditError]]:
    """The rows of each tenant that has some, and of whom they cannot be read."""
    found: dict[str, list[AuditRow]] = {}
    faults: list[AuditError] = []
    for tenant in tenants:
        try:
            rows = stored_rows(ctx, RowFilter(tenant_id=tenant, request_id=request_id), memory)
            found |= {tenant: those} if (those := list(rows)) else {}
        except (LedgerError, MemoryDamagedError, RowError) as error:
            faults.append(_Unproven(f"tenant {tenant}: {error}"))
    return found, faults


def _prove_all(ctx: click.Context, tenant: str, rows: list[AuditRow], name: Path) -> None:
    """Prove the rows of one tenant out of its own log, as many as are sealed."""
    log, unsealed = _log(ctx, tenant), 0
    for row in rows:
        if (index := _index(log, row)) is None:
            unsealed += 1
        else:
            _prove(log, row, index, name.with_name(f"{name.name}.{index}"))
    if unsealed:
        raise EvidenceError(
            f"rows that are not sealed yet and have no proof: {unsealed} of {len(rows)}; wait for"
            " the keeper, or run `audit seal`"
        )


def _log(ctx: click.Context, tenant_id: str) -> SealedLog:
    settings = settings_of(ctx)
    if settings.ledger_dir is None:
        raise click.UsageError("this application has no ledger: set AUDIT_LEDGER_DIR")
    keys = LedgerKeys.load(settings.ledger_keys, settings.ledger_origin)
    origin = origin_of(settings.ledger_origin, tenant_id, keys.secret)
    return SealedLog(Path(settings.ledger_dir), origin, keys.verifiers)


def _index(log: SealedLog, row: AuditRow) -> int | None:
    index = log.index_of(str(row.position))
    if index is not None and log.row(index) != row.to_bytes():
        raise LedgerDamagedError(
            f"the row at {row.position} of the memory is not the one that was sealed as row"
            f" {index}: run `audit verify`"
        )
    return index


def _prove(log: SealedLog, row: AuditRow, index: int, path: Path) -> None:
    proof = log.prove(index)
    files = {
        path.with_name(f"{path.name}.json"): row.to_bytes(),
        path.with_name(f"{path.name}{SUFFIX}"): proof.to_bytes(),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            replace_file(file, content, mode=_FILE_MODE)
    except OSError as error:
        raise EvidenceError(f"{path.parent} cannot be written: {error.strerror}") from error
    for file in files:
        echo(clean(str(file)))


def _version() -> str:
    return f"skill-host {metadata.version('skill-host')}"
