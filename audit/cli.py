"""``celery -A tasks audit ...``: the commands, each loaded when it is asked for.

Parse and print, nothing else. The Celery application arrives in ``ctx.obj``, where Celery's own
command line puts it. Every process that Celery's command line starts, a worker too, imports this
module: what a command needs is loaded with the command.

Exit status: 0 fine, 1 the answer is bad news, 2 wrong usage.
"""

from __future__ import annotations

import os
import sys
from collections import UserDict
from pkgutil import resolve_name
from typing import Any, Final

import click

from audit.cli_options import MEMORY_URL
from audit.errors import AuditError
from audit.plain import clean

#: Where each command stands; it has there the name that it has here.
COMMANDS: Final = {
    "compare-args": "audit.cli_compare:compare_args",
    "copy": "audit.cli_copy:copy",
    "doctor": "audit.cli_doctor:doctor",
    "duplicates": "audit.cli_duplicates:duplicates",
    "export": "audit.cli_evidence:export",
    "keep": "audit.cli_keeper:keep",
    "keygen": "audit.cli_ledger:keygen",
    "list": "audit.cli_rows:list_",
    "migrate": "audit.cli_migrate:migrate",
    "prove": "audit.cli_evidence:prove",
    "prune": "audit.cli_retention:prune",
    "reconcile": "audit.cli_keeper:reconcile",
    "running": "audit.cli_rows:running",
    "seal": "audit.cli_ledger:seal",
    "show": "audit.cli_rows:show",
    "tail": "audit.cli_rows:tail",
    "top": "audit.cli_top:top",
    "verify": "audit.cli_verify:verify",
    "verify-pack": "audit.cli_evidence:verify_pack",
}


class _Commands(UserDict[str, Any]):
    """The commands by name; whoever asks for one loads the module in which it stands."""

    def __getitem__(self, name: str) -> Any:
        return resolve_name(super().__getitem__(name))


class _AuditGroup(click.Group):
    """Gives whatever any of its commands may meet an exit status in the place of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AuditError as error:
            raise click.ClickException(clean(str(error))) from error
        except OSError as error:
            # A memory's errors are of the kind above, so this one is of the output. What is still
            # buffered must go somewhere, or the interpreter complains at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):  # whoever read has read enough
                ctx.exit(0)
            raise click.ClickException(str(error)) from error


@click.group(cls=_AuditGroup, commands=_Commands(COMMANDS))
@click.option(
    "--memory",
    metavar="URL",
    help="Ask this memory; else the one of AUDIT_MEMORY_URL or of the setting audit_memory_url.",
)
@click.pass_context
def audit(ctx: click.Context, memory: str | None) -> None:
    """See what skills run, what ran, and how it ended.

    A terminal shows as many columns as fit; a pipe gets all of them, parted by tabs; --json gives
    the rows as they are stored.

    \b
    Examples:
      celery -A tasks audit running
      celery -A tasks audit tail --outcome panic
      celery -A tasks audit list --since 2h --json

    Exit status: 0 fine, 1 the answer is bad news, 2 wrong usage.
    """
    ctx.meta[MEMORY_URL] = memory
