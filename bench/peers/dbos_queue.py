"""DBOS: a workflow that does nothing, from a queue in PostgreSQL.

Two processes share the queue; each takes up to :data:`AT_ONCE` workflows every :data:`EVERY`
seconds and runs them in threads. DBOS's defaults, no limit and one second, would have one process
take all of a batch, and a second of waiting in the figure.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final

from dbos import DBOS, DBOSClient

from bench.place import HELD, LIVE, Place
from bench.sides import noop

AT_ONCE: Final = 100
EVERY: Final = 0.05
VERSION: Final = "1"


def prepare(place: Place) -> None:
    _launch(place)
    DBOS.register_queue(LIVE, worker_concurrency=AT_ONCE, polling_interval_sec=EVERY)
    DBOS.destroy()


def work(place: Place) -> None:
    _launch(place)
    signal.sigwait([signal.SIGTERM])
    DBOS.destroy()


def publisher(place: Place) -> Callable[[int], Any]:
    client = DBOSClient(system_database_url=_url(place))
    options: Any = {"workflow_name": "noop", "queue_name": HELD, "app_version": VERSION}
    return lambda number: client.enqueue(options, number)


def _launch(place: Place) -> None:
    config: Any = {
        "name": "bench",
        "system_database_url": _url(place),
        "application_version": VERSION,
        "executor_id": str(os.getpid()),
        "log_level": "WARNING",
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before there are threads
    DBOS(config=config)
    DBOS.workflow(name="noop")(noop)
    DBOS.launch()


def _url(place: Place) -> str:
    return place.results.replace("postgresql://", "postgresql+psycopg://")
