"""A worker's app that instruments Celery by itself, before the host could: with span links."""

from __future__ import annotations

from opentelemetry.instrumentation.celery import CeleryInstrumentor

from tests.integration.worker_app import app

__all__ = ["app"]

CeleryInstrumentor().instrument(use_span_links=True)
