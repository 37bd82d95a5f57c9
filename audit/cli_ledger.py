"""``audit seal`` and ``audit keygen``: the ledger by hand, and its keys.

Keys come out on standard output or in a new file that nobody else may read, and nowhere else.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

from audit.invocation import new_request_id
from audit.ledger.keys import LedgerKeys, rotate_file, write_new
from audit.ledger.sealer import Sealer, SealRound
from audit.memory import AuditMemory
from audit.plain import clean
from audit.settings import AuditSettings
from audit.terminal import echo, memory_of, settings_of

#: Seconds to wait for another process that seals, and between two looks.
_PATIENCE: Final = 30.0
_LOOK: Final = 0.1


def sealer_of(settings: AuditSettings, memory: AuditMemory, worker: str) -> Sealer:
    """The sealer that the settings ask for.

    Raises:
        click.UsageError: they name no folder for the ledger.
    """
    if settings.ledger_dir is None:
        raise click.UsageError("there is no ledger: set AUDIT_LEDGER_DIR (or audit_ledger_dir)")
    return Sealer(
        memory,
        Path(settings.ledger_dir),
        origin=settings.ledger_origin,
        load_keys=lambda: LedgerKeys.load(settings.ledger_keys, settings.ledger_origin),
        worker=worker,
    )


@click.command()
@click.pass_context
def seal(ctx: click.Context) -> None:
    """Seal all rows that are not sealed yet, now.

    A keeper does so by itself, about once a second. Exit status: 0 all is sealed, 1 a log is
    damaged or cannot be sealed, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit seal
    """
    did = _when_free(sealer_of(settings_of(ctx), memory_of(ctx), new_request_id()))
    echo(f"rows sealed: {did.rows}; logs that have grown: {did.logs}")
    if did.old_keys_may_go:
        echo("every log has the signatures of all signing keys: the old key may go")
    for error in did.faults.values():
        click.echo(clean(f"Error: {error}"), err=True)
    ctx.exit(1 if did.faults else 0)


def _when_free(sealer: Sealer) -> SealRound:
    """One round, as soon as no other process of this machine seals."""
    until = time.monotonic() + _PATIENCE
    while (did := sealer.round()) is None:
        if time.monotonic() > until:
            raise click.ClickException("another process has been sealing for all this time")
        time.sleep(_LOOK)
    return did


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write them to this new file, which only you may read.",
)
@click.option(
    "--rotate",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Put a new key first in this file; the one before it signs on beside it.",
)
@click.option(
    "--origin",
    metavar="NAME",
    help="Name the key so; without it, after audit_ledger_origin (AUDIT_LEDGER_ORIGIN).",
)
@click.pass_context
def keygen(
    ctx: click.Context, output: Path | None, rotate: Path | None, origin: str | None
) -> None:
    """Make the keys of a new ledger, or rotate those of one.

    They hold what nobody else may know: keep them, and a copy, where only the keeper reads them. A
    file that is there is never overwritten. The key has the name of the ledger's origin, so set
    that before. What is printed with -o or --rotate are the public keys that verify from now on.

    \b
    Example:
      export AUDIT_LEDGER_ORIGIN=audit.example.com
      celery -A tasks audit keygen -o /etc/skill-host/ledger.keys
    """
    if output is not None and rotate is not None:
        raise click.UsageError("-o makes new keys, --rotate changes those there are: not both")
    if rotate is not None and origin is not None:
        raise click.UsageError("a rotated key keeps its name: --origin is for new keys")
    if rotate is not None:
        _rotate(rotate)
    else:
        _make(origin or settings_of(ctx).ledger_origin, output)


def _rotate(path: Path) -> None:
    keys = rotate_file(path)
    for signer in keys.signers:
        echo(signer.verifier.to_text())
    _tell(
        "both keys sign from now on, the newest stands first: whoever verifies needs both, until"
        " the old one is gone from the file and from every checkpoint that is still in use"
    )


def _make(origin: str, output: Path | None) -> None:
    keys = LedgerKeys.generate(origin)
    if output is None:
        click.echo(keys.to_text(), nl=False)
    else:
        write_new(keys, output)
        echo(keys.verifiers[0].to_text())
    _tell(
        f"the key is named {origin}: it signs where AUDIT_LEDGER_ORIGIN (or audit_ledger_origin)"
        " is that, or a path below it, and nowhere else"
    )


def _tell(text: str) -> None:
    """Beside the keys, which alone stand on standard output."""
    click.echo(clean(text), err=True)
