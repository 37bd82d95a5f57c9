"""``make demo``: watch the audited host at work. With ``KEEP=1`` it stays up until Ctrl-C.

Exit status: 0 when every call left its two rows, 1 when something did not come up or a row is
missing, 128 and the signal's number when a signal ended it before its time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import click
from kombu.exceptions import OperationalError

from audit import AuditError, open_memory
from demo.processes import ROOT
from demo.skills import panic
from demo.stack import FLOWER_USER, Stack, running_stack
from demo.tour import Tour
from demo.waiting import POLL_SECONDS, DemoError, Signals, StopRequest

WELCOME: Final = """The audited skill host: every skill that runs leaves two rows, however it ends.
Starting a server, a worker, beat and Flower ..."""
GONE: Final = "Everything that was started has ended, and no file is left."
KEEP_HINT: Final = "\n`make demo KEEP=1` leaves it up until Ctrl-C, to look around."

#: What there is to try in another terminal.
COMMANDS: Final = (
    "running",
    "list --outcome panic",
    "list --skill obs.triage-alert --json",
    "show {panicked}",
    "verify",
    "tail",
)


def main() -> int:
    """Run the demo; the exit status."""
    with Signals() as signals:
        try:
            return _run(signals)
        except StopRequest as stop:
            click.echo(f"\n{stop}. {GONE}")
            return 128 + stop.signum
        except (DemoError, AuditError, OperationalError) as error:
            click.echo(f"\nThe demo failed: {error}", err=True)
            return 1
        except BrokenPipeError:  # whoever reads has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1


def _run(signals: Signals) -> int:
    click.echo(WELCOME)
    began = time.monotonic()
    with running_stack(signals.check) as stack:
        click.echo(f"Up in {time.monotonic() - began:.1f} s.\n{_flower(stack)}")
        url = os.environ["AUDIT_MEMORY_URL"]
        with closing(open_memory(url)) as memory, Tour(stack, memory) as tour:
            tour.lead()
            tour.sum_up()
        if kept := os.environ.get("KEEP", "") not in ("", "0"):
            _stay_up(stack, tour)
    click.echo(f"\n{GONE}{'' if kept else KEEP_HINT}")
    return 0


def _flower(stack: Stack) -> str:
    """Where to look; the only place that shows the password."""
    return f"""
The audit, in Flower:  {stack.audit_url}
                user:  {FLOWER_USER}
            password:  {stack.flower_password}"""


def _stay_up(stack: Stack, tour: Tour) -> None:
    click.echo("\n".join(_hints(stack, tour.request_id_of(panic.name))))
    with suppress(StopRequest):
        while True:
            stack.check()
            time.sleep(POLL_SECONDS)


def _hints(stack: Stack, panicked: str) -> Iterator[str]:
    yield "\nStill up. To look around, in another terminal and in this directory:\n"
    for name, address in stack.provided.items():
        yield f"  export {name}='{address}'"
    for command in COMMANDS:
        yield f"  {_celery()} -A demo.skills audit {command.format(panicked=panicked)}"
    yield f"\nThe audit's pages: {stack.audit_url} (user {FLOWER_USER}, password at the top)."
    yield "Ctrl-C ends it all."


def _celery() -> Path:
    """The ``celery`` of this environment, as one would type it in the project's directory."""
    program = Path(sys.executable).with_name("celery")
    return program.relative_to(ROOT) if program.is_relative_to(ROOT) else program


if __name__ == "__main__":
    sys.exit(main())
