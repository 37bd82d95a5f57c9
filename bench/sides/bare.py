"""Celery as it comes."""

from __future__ import annotations

from celery import Celery

from bench.place import Place
from bench.sides import Side, fail, noop


def make(place: Place) -> Side:
    app = Celery("bench")
    app.conf.update(place.celery_settings())
    return Side(
        app=app, noop=app.task(name="bench.noop")(noop), fail=app.task(name="bench.fail")(fail)
    )
