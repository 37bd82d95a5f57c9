"""``audit top``: what runs and what ended last, on a terminal, until q or Ctrl-C.

An outage of the memory ends nothing: the last picture stays, under a line that says why there is no
newer one, and the next that can be read takes its place.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live

from audit.cli_options import tenant_option
from audit.errors import AuditError
from audit.memory import AuditMemory
from audit.terminal import console_of, echo, memory_of
from audit.top import Frame, as_text, read_frame

#: Lines that are no row: two titles, two heads, a gap, and one for trouble.
_BESIDE: Final = 6
#: What ``--once`` takes as the size of what is no terminal.
_WIDTH, _HEIGHT = 200, 46
_NO_TERMINAL: Final = (
    "top needs a terminal that can be drawn on: use --once, or `tail` and `running` in pipes"
)


@click.command()
@tenant_option
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Print one picture as text and end; pipes may have it.")
@click.pass_context
def top(ctx: click.Context, tenant_id: str | None, interval: float, once: bool) -> None:
    """Watch what runs and what ended last.

    Of each running invocation it shows the age, and whether the process that runs it still gives a
    sign of life (LEASE). It ends with q or Ctrl-C.

    \b
    Example:
      celery -A tasks audit top --once
    """
    console = console_of(ctx)
    if not once and (console is None or console.is_dumb_terminal):
        raise click.UsageError(_NO_TERMINAL)
    memory = memory_of(ctx)
    if once or console is None:
        _print_once(memory, tenant_id, console)
    else:
        _Watch(memory, tenant_id, console).go_on(interval)


def _print_once(memory: AuditMemory, tenant_id: str | None, console: Console | None) -> None:
    shown = console or Console(width=_WIDTH, height=_HEIGHT, color_system=None, highlight=False)
    frame = _frame(memory, tenant_id, _HEIGHT)
    with shown.capture() as captured:
        shown.print(as_text(frame, shown.width), soft_wrap=True)
    echo(captured.get().rstrip("\n"))


def _frame(memory: AuditMemory, tenant_id: str | None, height: int) -> Frame:
    half = max(1, (height - _BESIDE) // 2)
    return read_frame(memory, datetime.now(UTC), tenant_id=tenant_id, running=half, ended=half)


class _Watch:
    """The live view.

    Args:
        memory: what is asked.
        tenant_id: whose invocations; ``None`` for all.
        console: a terminal.
    """

    def __init__(self, memory: AuditMemory, tenant_id: str | None, console: Console) -> None:
        self._memory = memory
        self._tenant_id = tenant_id
        self._console = console
        self._frame: Frame | None = None

    def go_on(self, interval: float) -> None:
        """Look and show until q, Ctrl-C or a signal; the terminal is then as it was."""
        with (
            _ended_by(signal.SIGTERM, signal.SIGHUP),
            _keys() as wants_to_end,
            Live(console=self._console, screen=True, auto_refresh=False) as live,
            suppress(KeyboardInterrupt),
        ):
            while True:
                trouble = self._look()
                # Ages go on in an outage: what runs gets older, seen or not.
                shown = as_text(self._frame, self._console.width, trouble, now=datetime.now(UTC))
                live.update(shown, refresh=True)
                if wants_to_end(interval):
                    return

    def _look(self) -> str:
        """Read the next frame; why there is none, if there is none."""
        try:
            self._frame = _frame(self._memory, self._tenant_id, self._console.height)
        except AuditError as error:
            return str(error)
        return ""


@contextmanager
def _ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """Inside, these signals end the program by an exception, so that the terminal is tidied up."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits so many seconds for a key; whether it was q. Without a keyboard, it only waits."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda seconds: _asked_to_end(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _asked_to_end(descriptor: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left)[0]:
            pressed = os.read(descriptor, 64)
            # Nothing at all: the terminal has gone.
            if not pressed or pressed.lower().startswith(b"q"):
                return True
    return False
