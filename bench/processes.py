"""Processes of the bench: started, asked and ended through a handle, each step with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]

#: Seconds that the start of a process, or one answer of it, may take.
ANSWER_SECONDS: Final = 120.0
END_SECONDS: Final = 20.0

#: Settings that whoever calls the bench has for his own workers, and that win over ours.
FOREIGN: Final = ("AUDIT_", "CELERY_", "OTEL_")


class BenchError(Exception):
    """The measurement could not be made; the text says what failed."""


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Raise :class:`BenchError` when the block takes longer. Main thread only; does not nest."""

    def strike(signum: int, frame: FrameType | None) -> None:
        raise BenchError(f"{what} took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def clean_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(FOREIGN)}


class Program:
    """One process of ``python -m MODULE``, which ends when this one closes its input.

    Args:
        module: the program, e.g. ``bench.worker``.
        arguments: its arguments.
        log: the file that takes its standard error; what the program keeps goes beside it.
        python: the interpreter, which may be that of another environment.
    """

    def __init__(
        self, module: str, *arguments: str, log: Path, python: str = sys.executable
    ) -> None:
        self._name, self._log = module, log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, "-m", module, *arguments],
                cwd=ROOT,
                env=clean_environment() | {"XDG_STATE_HOME": str(log.parent)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Ctrl-C is for the bench, which then ends its processes in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise :class:`BenchError`, with the end of the log, if the process has ended."""
        if self._process.poll() is not None:
            raise self._failure(f"ended with status {self._process.returncode}")

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("takes no orders") from None

    def answer(self) -> Any:
        """The next line that the process prints, which is JSON."""
        assert self._process.stdout is not None
        with within(ANSWER_SECONDS, f"an answer of {self._name}"):
            line = self._process.stdout.readline()
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            raise self._failure(f"ended with status {self._process.returncode}, without an answer")
        return json.loads(line)

    def ask(self, **order: Any) -> Any:
        self.tell(json.dumps(order))
        return self.answer()

    def signal_end(self) -> None:
        """Ask the process to end, without waiting: several then end side by side."""
        if self._process.poll() is None:
            self._process.terminate()

    def end(self) -> None:
        """End the process, by force if it takes too long."""
        self.signal_end()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _failure(self, what: str) -> BenchError:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return BenchError(f"{self._name} {what}:\n{tail}")
