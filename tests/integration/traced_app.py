"""A worker's app that instruments Celery by itself, with span links: at once or in its children."""

from __future__ import annotations

import os
from typing import Any

from celery import signals
from opentelemetry.instrumentation.celery import CeleryInstrumentor

from tests.integration.worker_app import app

__all__ = ["app"]


def instrument(**_: Any) -> None:
    CeleryInstrumentor().instrument(use_span_links=True)


if os.environ.get("INSTRUMENT_IN_CHILDREN"):
    signals.worker_process_init.connect(instrument, weak=False)
else:
    instrument()
