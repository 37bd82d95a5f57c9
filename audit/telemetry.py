"""What every process of a host gives to OpenTelemetry: who it is, and where its metrics go.

The standard ``OTEL_*`` variables decide where telemetry goes; without an OTLP endpoint, or with
``none`` as the exporter of a signal, none is pushed. Nothing is started at import. A process ends
in time whatever the collector does.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

logger: Final = logging.getLogger("audit")

#: How long a process that ends may take to export what is left, all in all. A pool child is
#: replaced when it has ended, so a collector that is away costs every child so much and no more.
LAST_SECONDS: Final = 2.0

_SERVICE: Final = "skill-host"


def pushes(signal: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a signal, ``"METRICS"`` or ``"TRACES"``, is wanted and has an endpoint."""
    if environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none":
        return False
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(environ.get(name) for name in names)


def resource_of(role: str, worker: str, environ: Mapping[str, str] = os.environ) -> Resource:
    """Who this process is: no two processes share an instance id.

    Args:
        role: ``"worker"``, ``"child"``, ``"gateway"``, ``"keeper"`` or ``"verifier"``.
        worker: the id of the worker it belongs to, or of the keeper; empty for a gateway.
    """
    named = "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    service = {} if named or environ.get("OTEL_SERVICE_NAME") else {"service.name": _SERVICE}
    return Resource.create(
        {
            **service,
            "service.instance.id": str(uuid4()),
            "process.pid": os.getpid(),
            "skill.host.role": role,
            "skill.host.worker": worker,
        }
    )


def pushing_reader(*, threads: bool = True) -> MetricReader:
    """A reader that pushes over OTLP.

    Args:
        threads: whether it pushes by itself; else only when its provider is flushed, and then it
            starts no thread and leaves nothing that runs again in a forked child.
    """
    exporter = OTLPMetricExporter()
    if threads:
        return PeriodicExportingMetricReader(exporter)
    return PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)


def interval_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Seconds between two exports, as the SDK has it."""
    try:
        return max(0.1, float(environ.get("OTEL_METRIC_EXPORT_INTERVAL", "60000")) / 1000)
    except ValueError:
        return 60.0


def meters(readers: Sequence[MetricReader], resource: Resource) -> MeterProvider:
    """A provider without the names that clash: one of the instrumentor's is one of Flower's own."""
    return MeterProvider(
        readers,
        resource=resource,
        shutdown_on_exit=False,
        views=[View(instrument_name="flower.task.runtime.seconds", aggregation=DropAggregation())],
    )


def end(providers: Iterable[MeterProvider | TracerProvider]) -> None:
    """Export what is left and stop; what takes longer than :data:`LAST_SECONDS` is left behind.

    In threads, for the SDK's own limits hold for each step alone: they add up to half a minute.
    """
    threads = [
        threading.Thread(target=finish, args=(provider,), name="audit-telemetry-end", daemon=True)
        for provider in providers
    ]
    for thread in threads:
        thread.start()
    wait_for(threads)


def wait_for(threads: Iterable[threading.Thread]) -> None:
    """Let threads that end telemetry do so for :data:`LAST_SECONDS`, all in all."""
    threads = list(threads)
    deadline = time.monotonic() + LAST_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        logger.warning("telemetry that was left at the end of this process could not be exported")


def finish(provider: MeterProvider | TracerProvider) -> None:
    """Export what is left and stop, however long that takes."""
    try:
        provider.force_flush()
        provider.shutdown()
    except Exception:  # telemetry stops nobody who ends
        logger.warning("telemetry could not be ended", exc_info=True)
