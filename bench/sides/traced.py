"""Celery with OpenTelemetry: its instrumentor, and an SDK that records every span."""

from __future__ import annotations

from dataclasses import replace

from opentelemetry.instrumentation.celery import CeleryInstrumentor

from bench import sdk
from bench.place import Place
from bench.sides import Side, bare


def make(place: Place) -> Side:
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]
    return replace(bare.make(place), set_up=sdk.set_up)
