"""A peer at work: Celery with something beside it, or another queue altogether."""

from __future__ import annotations

import sys
import time
from typing import Final

from bench.crew import Hiring
from bench.peers.environment import python_for
from bench.peers.peer import Peer
from bench.peers.results import SqlResults, results_of
from bench.place import HELD, LIVE, SEEN, Place
from bench.processes import BenchError, Program
from bench.server import client, seconds_of_cpu
from bench.team import Team

#: Processes of a peer that has no children of its own.
PROCESSES: Final = 2
#: A query disturbs more than Redis's own count.
LOOKS_OF_SQL: Final = (0.05, 0.01)
#: Seconds until the camera has seen all of a batch.
CAMERA_SECONDS: Final = 10.0
LOOK_AT_CAMERA: Final = 0.1


def hire(peer: Peer, hiring: Hiring) -> Team:
    """Start a peer, whatever it needs first.

    Raises:
        BenchError: it cannot be installed, or does not start.
    """
    python = sys.executable if peer.package is None else python_for(peer.name)
    place = _place(peer, hiring)
    return hiring.take((CeleryPeer if peer.celery else QueuePeer)(peer, place, python, hiring))


def _place(peer: Peer, hiring: Hiring) -> Place:
    server = hiring.server()
    broker, results, memory = (server.url_for(number) for number in range(3))
    if peer.sql is not None:
        results = hiring.databases.fresh(peer.name)
    return Place(broker=broker, results=results, memory=memory)


def _prepare(peer: Peer, place: Place, python: str, hiring: Hiring) -> None:
    log = hiring.logs / f"{peer.name}-prepare.log"
    arguments = ("prepare", peer.name, place.to_json())
    program = Program("bench.peers.program", *arguments, log=log, python=python)
    try:
        program.answer()
    finally:
        program.end()


class CeleryPeer(Team):
    """A worker and a publisher of Celery's, on a Redis broker."""

    def __init__(self, peer: Peer, place: Place, python: str, hiring: Hiring) -> None:
        if peer.package is not None:
            _prepare(peer, place, python, hiring)
        log, side, sent = hiring.logs / f"{peer.name}.log", f"peers.{peer.name}", place.to_json()
        self._broker, self._memory = client(place.broker), client(place.memory)
        self._results = results_of(peer, place)
        self._helper = peer.helper
        if peer.sql is not None:
            self.looks = LOOKS_OF_SQL
        helpers = [Program(f"bench.{side}", sent, log=log)] if peer.helper else []
        super().__init__(
            peer.label,
            workers=[
                Program("bench.worker", peer.name, side, sent, log=log, python=python),
                *helpers,
            ],
            publisher=Program("bench.publisher", side, sent, log=log, python=python),
            servers=[lambda: seconds_of_cpu(self._broker), hiring.databases.cpu],
        )
        for helper in helpers:
            helper.answer()

    def _release(self) -> None:
        self._broker.rename(HELD, LIVE)

    def _done(self) -> int:
        return self._results.done()

    def _forget(self) -> None:
        self._results.forget()

    def _settle(self, count: int, fail_every: int) -> None:
        super()._settle(count, fail_every)
        if self._helper:
            self._wait_for_camera(count)

    def _wait_for_camera(self, count: int) -> None:
        """What it sees after the last result costs nothing, but it must have seen all."""
        deadline = time.monotonic() + CAMERA_SECONDS
        while (seen := self._memory.xlen(SEEN)) < count:
            if time.monotonic() > deadline:
                raise BenchError(f"{self.label}: the camera saw {seen} of {count} tasks")
            time.sleep(LOOK_AT_CAMERA)
        self._memory.delete(SEEN)


class QueuePeer(Team):
    """Processes that take tasks out of PostgreSQL; of a result it counts that it is there."""

    looks = LOOKS_OF_SQL

    def __init__(self, peer: Peer, place: Place, python: str, hiring: Hiring) -> None:
        _prepare(peer, place, python, hiring)
        log = hiring.logs / f"{peer.name}.log"
        work, publish = (
            ("bench.peers.program", what, peer.name, place.to_json())
            for what in ("work", "publish")
        )
        assert peer.sql is not None
        self._results = SqlResults(place.results, peer.sql)
        super().__init__(
            peer.label,
            workers=[Program(*work, log=log, python=python) for _ in range(PROCESSES)],
            publisher=Program(*publish, log=log, python=python),
            servers=[hiring.databases.cpu],
        )

    def _release(self) -> None:
        self._results.release()

    def _done(self) -> int:
        return self._results.done()

    def _forget(self) -> None:
        self._results.forget()

    def _settle(self, count: int, fail_every: int) -> None:
        self._forget()
