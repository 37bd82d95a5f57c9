"""OpenTelemetry, set up and shut down per process.

Exporter threads and metric readers do not survive a fork, and metrics recorded before it would be
exported again by every child. So a worker's main process sets up nothing before it forks, and every
pool child sets up its own providers, with an instance id of its own, and flushes them before it is
recycled (it leaves through ``os._exit``, so no exit handler would run).

Nothing that must hold rides on this: it hangs on Celery's signals, whose errors Celery swallows.
An application that sets up its own providers keeps them; the standard ``OTEL_*`` variables decide
where telemetry goes, and without an OTLP endpoint there is none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from celery import signals
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tasks.spans import MaskedSpans

#: How long the last export of a process may take, in milliseconds.
FLUSH_MILLIS: Final = 5000

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"

_providers: list[TracerProvider | MeterProvider] = []


def instrument() -> None:
    """Let OpenTelemetry's Celery instrumentor make the spans of publishing and running.

    Only where somebody has set a tracer provider: without one its spans are none, and would cost
    every task some 40 us. The trace id in the rows never hangs on it.
    """
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    instrumentor = CeleryInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument()


def set_up(environ: Mapping[str, str] = os.environ) -> None:
    """Set up this process's providers, for the signals that have an endpoint."""
    resource = Resource.create({"service.instance.id": str(uuid4())})
    if environ.get(_ENDPOINT) or environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        tracers.add_span_processor(MaskedSpans(BatchSpanProcessor(OTLPSpanExporter())))
        trace.set_tracer_provider(tracers)
        _providers.append(tracers)
    if environ.get(_ENDPOINT) or environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        meters = MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter())],
            resource=resource,
            shutdown_on_exit=False,
            # The instrumentor's histogram bears the name of one of Flower's own metrics.
            views=[
                View(instrument_name="flower.task.runtime.seconds", aggregation=DropAggregation())
            ],
        )
        metrics.set_meter_provider(meters)
        _providers.append(meters)


def shut_down() -> None:
    """Export what is left and stop the exporters of this process."""
    while _providers:
        provider = _providers.pop()
        provider.force_flush(FLUSH_MILLIS)
        provider.shutdown()


def connect(*, pool_forks: bool, spans: bool) -> None:
    """Set up telemetry in the processes that run bodies: the pool's children, or this one.

    Args:
        pool_forks: whether bodies run in children of this process.
        spans: whether Celery is to be instrumented (``audit_instrument``).
    """

    def begin(**_: Any) -> None:
        set_up()
        if spans:
            instrument()

    if not pool_forks:
        begin()
        signals.worker_shutdown.connect(_on_shutdown, weak=False)
        return
    signals.worker_process_init.connect(begin, weak=False)
    signals.worker_process_shutdown.connect(_on_shutdown, weak=False)


def _on_shutdown(**_: Any) -> None:
    shut_down()
