"""audit/telemetry.py: where telemetry goes, and how a process ends whatever the collector does."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import NoReturn

import pytest
from celery.concurrency.prefork import TaskPool
from opentelemetry import metrics as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from audit import metrics
from audit.telemetry import LAST_SECONDS, end, meters, pushes, pushing_reader, resource_of
from audit.testing import InMemory
from tasks.telemetry import MainProcess
from tasks.worker import AuditStep
from tests.integration.otlp import OtlpSink
from tests.support import wait_until

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@contextmanager
def listening() -> Iterator[str]:
    """A collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def refusing() -> Iterator[str]:
    """A place where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("collector", [listening, refusing])
@pytest.mark.parametrize("threads", [True, False])
def test_a_collector_that_is_away_holds_no_ending_process(
    collector: Callable[[], AbstractContextManager[str]],
    threads: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metrics and spans together take no longer than the one limit: children are recycled on.

    The seconds beyond it are what a busy machine adds.
    """
    with collector() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        provider = meters([pushing_reader(threads=threads)], resource_of("child", "w"))
        provider.get_meter("m").create_counter("c").add(1)
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        tracers.get_tracer("t").start_span("s").end()
        began = time.monotonic()
        end([provider, tracers])
        assert time.monotonic() - began < LAST_SECONDS + 10


def test_an_ending_process_exports_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both by a reader that pushes by itself and by one that does not."""
    with OtlpSink() as sink:
        for name, value in sink.environ.items():
            monkeypatch.setenv(name, value)
        readers = [pushing_reader(threads=threads) for threads in (True, False)]
        providers = [meters([reader], resource_of("child", "w")) for reader in readers]
        for provider in providers:
            provider.get_meter("m").create_counter("c").add(1)
        end(providers)
        assert sink.total("c") == 2


def test_a_main_process_needs_no_new_thread_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last export is made by an exit handler, where Python 3.12.1 starts none."""
    with OtlpSink() as sink:
        for name, value in sink.environ.items():
            monkeypatch.setenv(name, value)
        main = MainProcess("w")
        main.begin()
        metrics.emit_failed("start")
        for module in ("audit.telemetry", "tasks.telemetry"):
            monkeypatch.setattr(f"{module}.threading", SimpleNamespace(Thread=no_more))
        main.end()
        metrics.bind(api.NoOpMeterProvider())
        assert sink.total("skill_audit_emit_failures_total") == 1


def test_a_main_process_goes_on_after_an_export_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that raises once ends nothing: the next round exports."""
    tries: list[int] = []

    def force_flush() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("a reader failed")

    with OtlpSink() as sink:
        for name, value in sink.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
        main = MainProcess("w")
        monkeypatch.setattr(main._provider, "force_flush", force_flush)
        main.begin()
        wait_until(lambda: len(tries) > 2)
        main.end()
        metrics.bind(api.NoOpMeterProvider())


def no_more(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_a_collector_that_is_away_holds_no_ending_main_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its thread is at just then."""
    with listening() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        main = MainProcess("w")
        main.begin()
        metrics.emit_failed("start")
        began = time.monotonic()
        main.end()
        metrics.bind(api.NoOpMeterProvider())
        assert time.monotonic() - began < LAST_SECONDS + 10


def test_a_worker_exports_until_its_lease_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins last ends first, and giving the lease back replays what is counted."""
    begun: list[str] = []
    runtime = SimpleNamespace(
        worker_id="w",
        hold_lease=lambda _: begun.append("lease"),
        settings=SimpleNamespace(context_keys=()),
        spool=SimpleNamespace(others=list),
        memory=InMemory(),
    )
    app = SimpleNamespace(skill_runtime=runtime, tasks={})
    monkeypatch.setattr("tasks.worker.telemetry.begin_in_main", begun.append)
    parent = SimpleNamespace(app=app, pool_cls=TaskPool)
    object.__new__(AuditStep).start(parent)
    assert begun == ["w", "lease"]


@pytest.mark.parametrize("signal", ["METRICS", "TRACES"])
def test_none_as_the_exporter_means_none(signal: str) -> None:
    """As the OpenTelemetry specification has it; the other signal goes on."""
    other = {"METRICS": "TRACES", "TRACES": "METRICS"}[signal]
    environ = {**ENDPOINT, f"OTEL_{signal}_EXPORTER": "none"}
    assert not pushes(signal, environ)
    assert pushes(other, environ)
    assert pushes(signal, {**ENDPOINT, f"OTEL_{signal}_EXPORTER": "otlp"})
    assert not pushes(signal, {})
