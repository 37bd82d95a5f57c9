"""The processes under test: workers and a keeper, each in a process group of its own.

Every process is started, found and ended by its id, and none outlives the run: :class:`Crew` ends
them when its block ends, and the leash does it where not even that happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import psutil  # type: ignore[import-untyped]

from chaos.place import ROOT, Place
from chaos.skills import QUEUE

#: Seconds that the end of a process may take before it is killed.
END_SECONDS: Final = 20.0
START_SECONDS: Final = 60.0
CHILDREN: Final = 3
_OPTIONS: Final = ("-l", "INFO", "-c", str(CHILDREN))


class ChaosError(Exception):
    """The run could not be made; the text says what failed."""


class Member:
    """One process under test, which can be started again and again.

    Attributes:
        name: for logs and reports.
        frozen: whether it was stopped in its tracks.
        leaving: whether it was told to end.
    """

    def __init__(self, place: Place, name: str, arguments: Sequence[str], ready: bytes) -> None:
        self.name = name
        self.frozen = False
        self.leaving = False
        self._place = place
        self._arguments = arguments
        self._ready_word = ready
        self._ready = False
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ChaosError(f"{self.name} was never started")
        return self._process

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def log(self) -> Path:
        return self._place.directory / f"{self.name}-{self._starts}.log"

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it runs, does its work, and was told nothing to the contrary."""
        if not self._ready:
            self._ready = self._ready_word in self.log.read_bytes()
        return self._ready and self.running and not self.frozen and not self.leaving

    def start(self) -> None:
        self._starts += 1
        self._ready = self.frozen = self.leaving = False
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                cwd=ROOT,
                env=self._place.environ(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def children(self) -> list[int]:
        """The ids of its pool children."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.process.pid).children()]
        return []

    def family(self) -> list[int]:
        return [self.process.pid, *self.children()]

    def signal(self, number: signal.Signals) -> list[int]:
        """Signal the process and its children; the ids of all."""
        family = self.family()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return family

    def kill(self) -> list[int]:
        """SIGKILL to the whole group; the ids of all."""
        family = self.family()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._let_go()
        return family

    def ask_to_end(self) -> None:
        """Ask without waiting: several then end side by side."""
        if self.started and self.running:
            self.signal(signal.SIGCONT)
            self.process.terminate()

    def end(self) -> None:
        """Wait for the end that was asked for, and end by force what takes too long."""
        if self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
            self.kill()

    def _let_go(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()


class Team:
    """Processes that start and end together."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.start()
        except BaseException:
            self._end_at_once()
            raise
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is not None:
            self._end_at_once()
            return
        for member in self.members:
            member.ask_to_end()
        for member in self.members:
            member.end()

    def _end_at_once(self) -> None:
        for member in self.members:
            if member.started:
                member.kill()

    def wait_ready(self) -> None:
        """Wait until everyone works.

        Raises:
            ChaosError: somebody does not come up.
        """
        deadline = time.monotonic() + START_SECONDS
        while waiting := [member for member in self.members if not member.ready]:
            if time.monotonic() > deadline:
                names = ", ".join(str(member.log) for member in waiting)
                raise ChaosError(f"not ready in {START_SECONDS:g} s, see {names}")
            time.sleep(0.05)


class Crew(Team):
    """The workers and the keeper of a run.

    Args:
        place: where they work.
        workers: how many.
        host: the module of their app.
        options: further options of the workers.
    """

    def __init__(
        self, place: Place, workers: int, host: str = "chaos.app", options: Sequence[str] = _OPTIONS
    ) -> None:
        self.workers = [worker(place, number, host, options) for number in range(workers)]
        self.keeper = Member(
            place, "keeper", ["celery", "-A", host, "audit", "keep", "--json"], b""
        )
        super().__init__([*self.workers, self.keeper])


def worker(place: Place, number: int, host: str, options: Sequence[str]) -> Member:
    """A prefork worker that consumes the queue of the run."""
    command = ["celery", "-A", host, "worker", "-P", "prefork", "-Q", QUEUE, *options]
    command += ["--without-mingle", "--without-gossip"]
    name = f"worker-{number}"
    return Member(place, name, [*command, "-n", f"{name}@chaos"], b" ready.")
