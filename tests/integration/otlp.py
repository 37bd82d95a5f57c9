"""A sink for OTLP over HTTP: what a collector would have received."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpSink:
    """Receives metrics and spans on a free port of 127.0.0.1 and adds them up."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environ(self) -> dict[str, str]:
        """The standard variables that send a process's telemetry here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_address[1]}",
            "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }

    def total(self, name: str, **attributes: str) -> float:
        """The sum of a counter, or of a histogram's counts, over every process that exported."""
        latest: dict[tuple[Any, ...], float] = {}
        for instance, point in self._points(name):
            labels = {pair.key: pair.value.string_value for pair in point.attributes}
            if attributes.items() <= labels.items():
                value = point.count if hasattr(point, "count") else point.as_int
                # Cumulative: the last export of a process stands for all it counted.
                latest[instance, *sorted(labels.items())] = value
        return sum(latest.values())

    def bounds(self, name: str) -> list[float]:
        return [bound for _, point in self._points(name) for bound in point.explicit_bounds]

    def instances(self, name: str) -> set[str]:
        """The service.instance.id of every process that exported a metric."""
        return {instance for instance, _ in self._points(name)}

    def resources(self) -> list[dict[str, str]]:
        """Who each process is that exported metrics, by its instance id once."""
        found = {}
        for request in self.metrics:
            for resource in request.resource_metrics:
                labels = {
                    a.key: a.value.string_value or str(a.value.int_value)
                    for a in resource.resource.attributes
                }
                found[labels["service.instance.id"]] = labels
        return list(found.values())

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def _points(self, name: str) -> Iterator[tuple[str, Any]]:
        for request in self.metrics:
            for resource in request.resource_metrics:
                labels = {a.key: a.value.string_value for a in resource.resource.attributes}
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == name:
                            data = getattr(metric, str(metric.WhichOneof("data")))
                            for point in data.data_points:
                                yield labels["service.instance.id"], point

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.endswith("/metrics"):
                    sink.metrics.append(ExportMetricsServiceRequest.FromString(body))
                else:
                    sink.traces.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        return Handler
