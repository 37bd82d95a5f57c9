"""OpenTelemetry, set up and shut down per process.

Exporter threads and metric readers do not survive a fork, and metrics recorded before it would be
exported again by every child. So every pool child sets up its own providers, with an instance id of
its own, and flushes them before it is recycled (it leaves through ``os._exit``, so no exit handler
would run).

The main process of a pool that forks counts too: what it closes for children that are gone, and
what waits in the spool. It sets no global provider, for a child could not replace it; only the
host's own instruments are bound to a provider of the main process, until a child binds them to its
own. That provider is pushed by a thread of ours, which ends at the fork and takes nothing along.

Nothing that must hold rides on this: it hangs on Celery's signals, whose errors Celery swallows.
An application that sets up its own providers keeps them; the standard ``OTEL_*`` variables decide
where telemetry goes, and without an OTLP endpoint there is none.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from celery import signals
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from audit import metrics as instruments
from audit.telemetry import (
    end,
    finish,
    interval_seconds,
    meters,
    pushes,
    pushing_reader,
    resource_of,
    wait_for,
)
from tasks.spans import MaskedSpans

logger: Final = logging.getLogger("audit")

_providers: Final[list[TracerProvider | MeterProvider]] = []


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


def set_up(
    environ: Mapping[str, str] = os.environ, *, role: str = "worker", worker: str = ""
) -> None:
    """Set up this process's providers, for the signals that have an endpoint and no provider yet.

    Args:
        role: what this process is, see :func:`audit.telemetry.resource_of`.
        worker: the id of the worker it belongs to.
    """
    resource = resource_of(role, worker, environ)
    if pushes("TRACES", environ) and _is_unset(trace.get_tracer_provider()):
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        tracers.add_span_processor(MaskedSpans(BatchSpanProcessor(OTLPSpanExporter())))
        trace.set_tracer_provider(tracers)
        _providers.append(tracers)
    if pushes("METRICS", environ) and _is_unset(metrics.get_meter_provider()):
        provider = meters([pushing_reader()], resource)
        metrics.set_meter_provider(provider)
        _providers.append(provider)
    # A child's are still bound to its main process's.
    instruments.bind(metrics.get_meter_provider())


def shut_down() -> None:
    """Export what is left and stop the exporters of this process, in bounded time."""
    ending = _providers.copy()
    _providers.clear()
    end(ending)


def connect(*, pool_forks: bool, spans: bool, worker: str) -> None:
    """Set up telemetry in the processes that run bodies: the pool's children, or this one.

    Args:
        pool_forks: whether bodies run in children of this process.
        spans: whether Celery is to be instrumented (``audit_instrument``).
        worker: the id of this worker.
    """

    def begin(**_: Any) -> None:
        set_up(role="child" if pool_forks else "worker", worker=worker)
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


def _is_unset(provider: object) -> bool:
    """Whether it is the placeholder that stands where nobody has set a provider."""
    return isinstance(provider, trace.ProxyTracerProvider) or type(provider).__module__.startswith(
        "opentelemetry.metrics."
    )


# --- the main process of a pool that forks ------------------------------------------------------


class MainProcess:
    """Exports what the main process counts, while its pool forks children.

    Args:
        worker: the id of this worker.
        environ: the environment.
    """

    def __init__(self, worker: str, environ: Mapping[str, str] = os.environ) -> None:
        self._provider = meters(
            [pushing_reader(threads=False)], resource_of("worker", worker, environ)
        )
        self._pid = os.getpid()
        self._seconds = interval_seconds(environ)
        self._stop = threading.Event()
        # It also does the last export: Python 3.12.1 starts no thread in an exit handler.
        self._thread = threading.Thread(target=self._run, name="audit-metrics", daemon=True)

    def begin(self) -> None:
        """Count from now on, and export until the process ends."""
        instruments.bind(self._provider)
        self._thread.start()
        atexit.register(self.end)

    def end(self) -> None:
        """Export what is left, in bounded time; in a child, or done again, this does nothing."""
        if os.getpid() != self._pid or self._stop.is_set():
            return
        self._stop.set()
        wait_for([self._thread])

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self._provider.force_flush()
            except Exception:  # a reader that fails once must not end what is pushed for good
                logger.warning("metrics were not pushed this time", exc_info=True)
        finish(self._provider)


def begin_in_main(worker: str, environ: Mapping[str, str] = os.environ) -> MainProcess | None:
    """Export from this main process, where metrics go anywhere; called when its pool is there.

    An application that has set up its own provider keeps it, and needs none of ours.
    """
    if not pushes("METRICS", environ) or not _is_unset(metrics.get_meter_provider()):
        return None
    main = MainProcess(worker, environ)
    main.begin()
    return main
