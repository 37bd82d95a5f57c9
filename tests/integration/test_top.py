"""`celery -A app audit top` on a real terminal, beside a real memory and a real worker."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.stack import ROOT, Stack, caller
from tests.support import wait_until

ROWS, COLUMNS = 40, 160


class Terminal:
    """A terminal with `audit top` on it: what was shown so far, and what keys are pressed."""

    def __init__(self, stack: Stack, *args: str, **environ: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self._text = b""
        own = {n: v for n, v in os.environ.items() if n not in ("COLUMNS", "LINES", "NO_COLOR")}
        command = [sys.executable, "-m", "celery", "-A", "tests.integration.worker_app"]
        self.process = subprocess.Popen(
            [*command, "audit", "top", "--interval", "0.1", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=stack.directory,
            env={**own, **stack.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
            | {"AUDIT_EMIT_TIMEOUT": "0.5", **environ},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while self._text is not None:
            try:
                self._text += os.read(self.ours, 65536)
            except OSError:
                return

    def frame(self) -> str:
        """The newest picture that is whole, without colours."""
        pictures = self._text.decode(errors="replace").split("\x1b[H")
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", pictures[-2]) if len(pictures) > 2 else ""

    def shows(self, *texts: str, without: str = "\0") -> None:
        wait_until(lambda: all(t in (f := self.frame()) for t in texts) and without not in f, 30)

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self) -> int:
        return self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self.theirs)
        self._reader.join(5)
        os.close(self.ours)


@pytest.fixture
def terminal(stack: Stack) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*args: str, **environ: str) -> Terminal:
        opened.append(Terminal(stack, *args, **environ))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_rows_appear_and_an_outage_passes(stack: Stack, terminal: Any, tmp_path: Path) -> None:
    """What runs appears with its lease and moves to the endings; an outage is told and forgotten;
    q ends, and leaves the terminal as it was."""
    top = terminal()
    top.shows("Running: 0", "Last endings: 0")
    gate = tmp_path / "gate"
    with caller():
        stack.skills.hold.delay(str(gate))
    name = stack.skills.hold.name
    top.shows("Running: 1", name, "held")
    stack.server.pause()
    try:
        top.shows("No newer picture: memory", name)
    finally:
        stack.server.resume()
    top.shows("Running: 1", "held", without="No newer picture")
    gate.touch()
    top.shows("Running: 0", "Last endings: 1", name, "success")
    top.press(b"q")
    assert top.end() == 0
    assert termios.tcgetattr(top.theirs) == top.before


def test_ctrl_c_ends(terminal: Any) -> None:
    """As wanted as q is: exit status 0, no traceback, the terminal as it was."""
    top = terminal()
    top.shows("Last endings")
    top.process.send_signal(signal.SIGINT)
    assert top.end() == 0
    assert "Traceback" not in top._text.decode()
    assert termios.tcgetattr(top.theirs) == top.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(
    terminal: Any, number: signal.Signals
) -> None:
    """`kill` and a closed window: echo, cursor and screen are back, the status tells the signal."""
    top = terminal()
    top.shows("Last endings")
    top.process.send_signal(number)
    assert top.end() == 128 + number
    assert termios.tcgetattr(top.theirs) == top.before
    wait_until(lambda: b"\x1b[?1049l" in top._text and b"\x1b[?25h" in top._text)


def test_a_terminal_that_cannot_be_drawn_on(terminal: Any) -> None:
    """TERM=dumb is wrong usage, which names --once, instead of a screen that stays empty."""
    top = terminal(TERM="dumb")
    assert top.end() == 2
    wait_until(lambda: b"--once" in top._text)


def test_other_keys_do_nothing(terminal: Any) -> None:
    """Only q ends."""
    top = terminal()
    top.shows("Last endings")
    top.press(b"x\x1b[A\n")
    seen = len(top._text)
    wait_until(lambda: len(top._text) > seen + 500)
    assert top.process.poll() is None
    top.press(b"Q")
    assert top.end() == 0
