"""Celery with results in PostgreSQL by SQLAlchemy, extended, and the state STARTED before."""

from __future__ import annotations

from dataclasses import replace

from bench.peers import track_started
from bench.place import Place
from bench.sides import Side


def make(place: Place) -> Side:
    url = place.results.replace("postgresql://", "db+postgresql+psycopg://")
    side = track_started.make(replace(place, results=url))
    side.app.conf.update(result_extended=True)
    return side
