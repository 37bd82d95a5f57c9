"""The demo's child processes: each in a session of its own, each with a log, none left behind.

A session of its own keeps Ctrl-C in the terminal away from a child: the demo gets it and ends all
of them in order. The janitor is there for the demo that cannot, because it was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from demo.waiting import DemoError

ROOT: Final = Path(__file__).parents[1]

#: How long a child may take to end in order. The worker lets its running skills end, and now and
#: then waits half a minute more for one of its own processes, whose rows are all on disk by then.
END_SECONDS: Final = 5.0
TAIL_LINES: Final = 25


class Janitor:
    """The process that clears up after a killed demo."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(ROOT / "demo" / "janitor.py"), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            bufsize=1,
        )

    def watch_over(self, group: int) -> None:
        """Let it end this process group too."""
        assert self._process.stdin is not None
        print(group, file=self._process.stdin, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class Child:
    """One program of the stack.

    Args:
        name: what messages call it.
        arguments: of ``python -m celery -A demo.skills``.
        environment: the whole of it.
        log: the file its output goes to.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "demo.skills", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """Its process group, which its own children belong to as well."""
        return self._process.pid

    def check(self) -> None:
        """Raise the error for a child that has ended by itself."""
        if self._process.poll() is not None:
            raise self.failure(f"the {self.name} ended, status {self._process.returncode}")

    def log(self) -> str:
        """What it said so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def failure(self, text: str) -> DemoError:
        """The error that quotes the end of this child's log."""
        tail = "\n".join(f"    {line}" for line in self.log().splitlines()[-TAIL_LINES:])
        return DemoError(f"{text}. The end of its log:\n{tail}")

    def ask_to_end(self) -> None:
        """Send SIGTERM; :meth:`end` then waits."""
        self._process.terminate()

    def end(self) -> None:
        """Wait until it has ended, and kill whatever of its group takes too long or stays."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signal.SIGKILL)
        self._process.wait()
