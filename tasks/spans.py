"""Spans without arguments and results.

OpenTelemetry's instrumentor gets errors that are masked already. What a body does with spans of its
own is masked here, where a span ends and the invocation still runs: the text of an error that left
it, in its status and in its exception events, and any name or attribute that repeats a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import Link
from opentelemetry.trace.status import Status

from tasks.caller import ChildState, running


class MaskedSpans(SpanProcessor):
    """Hands spans on to ``inner``, those that end inside an invocation masked.

    The host wraps its own exporters so. An application that sets up its own tracer provider wraps
    its own: ``provider.add_span_processor(MaskedSpans(BatchSpanProcessor(exporter)))``.
    """

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Called when a span begins."""
        self._inner.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Called when a span has ended, in the thread that ended it."""
        state = running()
        self._inner.on_end(span if state is None else _masked(span, state))

    def shutdown(self) -> None:
        """Called when the provider is shut down."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Called to export what has ended."""
        return self._inner.force_flush(timeout_millis)


def _masked(span: ReadableSpan, state: ChildState) -> ReadableSpan:
    status = span.status
    if status.description:
        status = Status(status.status_code, state.values.mask(status.description))
    return ReadableSpan(
        name=state.values.mask(span.name),
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=_told(span.attributes, state),
        events=[
            Event(state.values.mask(e.name), _told(e.attributes, state), e.timestamp)
            for e in span.events
        ],
        links=[Link(link.context, _told(link.attributes, state)) for link in span.links],
        kind=span.kind,
        status=status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _told(attributes: Mapping[str, Any] | None, state: ChildState) -> dict[str, Any]:
    return {
        state.values.mask(name): _without(value, state)
        for name, value in (attributes or {}).items()
    }


def _without(value: Any, state: ChildState) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, tuple | list):
        return tuple(_without(part, state) for part in value)
    text = str(value)
    masked = state.values.mask(text)
    return value if masked == text else masked
