"""audit/telemetry.py: where telemetry goes, and how a process ends whatever the collector does."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from audit.telemetry import LAST_SECONDS, end, meters, pushes, pushing_reader, resource_of
from tests.integration.otlp import OtlpSink

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
    """Metrics and spans together take no longer than the one limit: children are recycled on."""
    with collector() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        provider = meters([pushing_reader(threads=threads)], resource_of("child", "w"))
        provider.get_meter("m").create_counter("c").add(1)
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        tracers.get_tracer("t").start_span("s").end()
        began = time.monotonic()
        end([provider, tracers])
        assert time.monotonic() - began < LAST_SECONDS + 1


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


@pytest.mark.parametrize("signal", ["METRICS", "TRACES"])
def test_none_as_the_exporter_means_none(signal: str) -> None:
    """As the OpenTelemetry specification has it; the other signal goes on."""
    other = {"METRICS": "TRACES", "TRACES": "METRICS"}[signal]
    environ = {**ENDPOINT, f"OTEL_{signal}_EXPORTER": "none"}
    assert not pushes(signal, environ)
    assert pushes(other, environ)
    assert pushes(signal, {**ENDPOINT, f"OTEL_{signal}_EXPORTER": "otlp"})
    assert not pushes(signal, {})
