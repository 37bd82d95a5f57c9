"""procrastinate: a task that does nothing, from its table of jobs in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import procrastinate

from bench.place import HELD, LIVE, Place
from bench.sides import noop


def prepare(place: Place) -> None:
    with _app(place)[0].open() as app:
        app.schema_manager.apply_schema()


def work(place: Place) -> None:
    app, _ = _app(place, procrastinate.PsycopgConnector)
    app.run_worker(queues=[LIVE])


def publisher(place: Place) -> Callable[[int], Any]:
    app, task = _app(place)
    app.open()
    return lambda number: task.defer(number=number)


def _app(place: Place, connector: Any = procrastinate.SyncPsycopgConnector) -> tuple[Any, Any]:
    app = procrastinate.App(connector=connector(conninfo=place.results))
    return app, app.task(queue=HELD, name="noop")(noop)
