"""``audit doctor``: is this host as it should be, and if not, what is to be done.

What must know Celery comes from the host itself: it hangs ``skill_probes`` on its app.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from audit.doctor.check import PROBES, SECONDS, Check, Level, Probe, bad, examine, ok, skipped
from audit.doctor.local import key_probes, spool_probe
from audit.doctor.store import store_probes
from audit.errors import AuditError
from audit.plain import clean
from audit.terminal import console_of, echo, memory_of, settings_of

_STYLES: Final = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "bold red"}
_OF_SETTINGS: Final = (
    *("memory", "writes", "durability", "clock", "keeper", "leases"),
    *("context keys", "hash keys", "ledger keys", "spool"),
)


@click.command()
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=600),
    metavar="SECONDS",
    default=SECONDS,
    show_default=True,
    help="For each check.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a check.")
@click.pass_context
def doctor(ctx: click.Context, timeout: float, as_json: bool) -> None:
    """Check this host and say what to do.

    Looked at are memory, broker, keys, spool, keeper, workers, skills, beat and Flower.
    Run it where and as a worker runs, with the same environment. Nothing that it writes stays.
    Exit status: 0 nothing is BAD, 1 something is, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit doctor
    """
    given, probes = _of_settings(ctx)
    probes += _of_celery(ctx)
    found = examine(probes, timeout)
    checks = [*given, *found]
    if as_json:
        for check in checks:
            click.echo(json.dumps(asdict(check)))
    else:
        _print(checks, console_of(ctx))
    ctx.exit(1 if any(check.level is Level.BAD for check in checks) else 0)


def _of_settings(ctx: click.Context) -> tuple[list[Check], list[Probe]]:
    """The line of the settings, and the probes of what they name."""
    try:
        settings, memory = settings_of(ctx), memory_of(ctx)
    except AuditError as error:
        without = [skipped(name, "the settings cannot be read") for name in _OF_SETTINGS]
        return [bad("settings", str(error), "mend that setting"), *without], []
    return [ok("settings", "every audit_* setting can be used")], [
        *store_probes(memory, settings.lease_seconds),
        *key_probes(settings),
        spool_probe(settings, memory.name),
    ]


def _of_celery(ctx: click.Context) -> list[Probe]:
    probes: Callable[[], list[Probe]] | None = getattr(ctx.obj.app, PROBES, None)
    if probes is not None:
        return probes()
    advice = "make it a host: SkillHost(...), or SkillHost.adopt(app)"
    no_host = bad("host", "the Celery app is no skill host: nothing of it is audited", advice)
    return [Probe(name="host", look=lambda: no_host)]


def _print(checks: Sequence[Check], console: Console | None) -> None:
    for check in checks:
        if console is None:
            echo("\t".join((check.level, check.name, clean(check.seen), clean(check.advice))))
            continue
        level = (f"{check.level:<8}", _STYLES.get(check.level, "dim"))
        console.print(Text.assemble(level, f"{check.name:<15} {clean(check.seen)}"))
        if check.advice:
            console.print(Text(f"{'':<24}-> {clean(check.advice)}"))
