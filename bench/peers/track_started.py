"""Celery that stores the state STARTED before it runs a task."""

from __future__ import annotations

from bench.place import Place
from bench.sides import Side, bare


def make(place: Place) -> Side:
    side = bare.make(place)
    side.app.conf.update(task_track_started=True)
    return side
