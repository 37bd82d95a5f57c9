"""tasks/spans.py: spans that end inside an invocation show no values, others are as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.status import Status, StatusCode

from audit.context import InvocationContext
from tasks.caller import ChildState, one_task, runs
from tasks.spans import MaskedSpans
from tests.support import TENANT

SECRET = "customer-4711"
CALLER = InvocationContext("cuo-cpo@0.4.1", TENANT)


class Inner(SpanProcessor):
    def __init__(self) -> None:
        self.began: list[Any] = []
        self.spans: list[ReadableSpan] = []
        self.calls: list[Any] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.began.append((span, parent_context))

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.calls.append(timeout_millis)
        return False


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.fixture
def tracer(inner: Inner) -> Any:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(MaskedSpans(inner))
    return provider.get_tracer("billing", "1.2")


@contextmanager
def invocation(*values: Any) -> Iterator[None]:
    with one_task():
        runs(ChildState(object(), CALLER, values or (SECRET,)))
        yield


def test_a_span_of_a_body_shows_no_value(tracer: Any, inner: Inner) -> None:
    """Name, attributes, status and events, in what is exported of it."""
    with invocation():
        span = tracer.start_span(f"bill {SECRET}", attributes={"who": SECRET, SECRET: "key"})
        span.set_attribute("many", ["x", SECRET])
        span.add_event(f"at {SECRET}", {"who": f"for {SECRET}"})
        span.set_status(Status(StatusCode.ERROR, f"no {SECRET}"))
        span.end()
    (found,) = inner.spans
    assert found.name == "bill ***"
    assert found.attributes == {"who": "***", "***": "key", "many": ("x", "***")}
    (event,) = found.events
    assert (event.name, dict(event.attributes or {})) == ("at ***", {"who": "for ***"})
    assert (found.status.status_code, found.status.description) == (StatusCode.ERROR, "no ***")
    assert SECRET.encode() not in encode_spans([found]).SerializeToString()
    assert SECRET not in found.to_json()


def test_an_error_that_leaves_a_span_is_masked(tracer: Any, inner: Inner) -> None:
    """OpenTelemetry records type, message and stacktrace, and makes its text the status."""
    with (
        invocation(),
        pytest.raises(ValueError, match="customer"),
        tracer.start_as_current_span("s"),
    ):
        raise ValueError(f"no {SECRET}") from KeyError(SECRET)
    (found,) = inner.spans
    (event,) = found.events
    told = dict(event.attributes or {})
    assert (event.name, told["exception.type"]) == ("exception", "ValueError")
    assert told["exception.message"] == "no ***"
    assert str(told["exception.stacktrace"]).endswith("ValueError: no ***\n")
    assert found.status.description == "ValueError: no ***"
    assert SECRET.encode() not in encode_spans([found]).SerializeToString()


def test_a_span_outside_invocations_is_the_same(tracer: Any, inner: Inner) -> None:
    """The very object, whatever it says."""
    span = tracer.start_span(SECRET, attributes={"who": SECRET})
    span.end()
    (found,) = inner.spans
    assert (found.name, found.attributes) == (SECRET, {"who": SECRET})
    assert found.get_span_context() == span.get_span_context()
    masked = MaskedSpans(inner)
    masked.on_end(found)
    assert inner.spans[1] is found
    with invocation():
        masked.on_end(found)
    assert inner.spans[2] is not found


def test_numbers_are_looked_at_and_keep_their_types(tracer: Any, inner: Inner) -> None:
    """Only one that shows a value becomes a text; True is no number of one digit."""
    with invocation(471100, 1.0, "True"):
        tracer.start_span(
            "s", attributes={"a": 5, "b": 2.5, "c": True, "d": [1, 2], "e": 471100, "f": [471100]}
        ).end()
    told = dict(inner.spans[0].attributes or {})
    assert told == {"a": 5, "b": 2.5, "c": True, "d": (1, 2), "e": "***", "f": ("***",)}
    assert [type(told[name]) for name in "abc"] == [int, float, bool]


def test_what_a_span_is_stays(tracer: Any, inner: Inner) -> None:
    """Place in the trace, links, kind, times, status, resource and scope."""
    other = tracer.start_span("other")
    with invocation(), tracer.start_as_current_span("outer") as outer:
        span = tracer.start_span(
            "s",
            kind=SpanKind.CLIENT,
            links=[Link(other.get_span_context(), {"who": SECRET, "n": 5})],
            start_time=7,
        )
        span.add_event("e", timestamp=8)
        span.set_status(StatusCode.OK)
        span.end(9)
    found, plain = inner.spans[0], span
    assert found.get_span_context() == plain.get_span_context()
    assert found.parent is not None
    assert found.parent.span_id == outer.get_span_context().span_id
    assert (found.kind, found.start_time, found.end_time) == (SpanKind.CLIENT, 7, 9)
    assert found.events[0].timestamp == 8
    assert (found.status.status_code, found.status.description) == (StatusCode.OK, None)
    assert found.resource is plain.resource
    assert found.instrumentation_scope == plain.instrumentation_scope
    (link,) = found.links
    assert link.context == other.get_span_context()
    assert dict(link.attributes or {}) == {"who": "***", "n": 5}


def test_everything_else_goes_to_the_inner_one(tracer: Any, inner: Inner) -> None:
    """Beginning with its parent's context, flushing with its time and its answer, the end."""
    place = trace.set_span_in_context(trace.INVALID_SPAN)
    span = tracer.start_span("s", context=place)
    assert inner.began == [(span, place)]
    masked = MaskedSpans(inner)
    assert masked.force_flush(5) is False
    masked.shutdown()
    assert inner.calls == [5, "shutdown"]
