"""The trace in the rows is the caller's, whatever tracing a worker has (decision 18)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from celery import Celery
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler

from audit import AuditRow, InvocationContext
from audit.context import TRACE_HEADER, TRACE_STATE_HEADER, Trace
from tests.integration.otlp import OtlpSink
from tests.integration.stack import Stack, caller, running_stack
from tests.integration.ways import publish_in_a_process
from tests.support import TENANT, wait_until

TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
PLACE = Trace(trace_id="0af7651916cd43dd8448eb211c80319c", span_id="b7ad6b7169203331")

#: What a worker may have of tracing: its app, and what its environment says beside the sink.
WORKERS: dict[str, tuple[str, dict[str, str] | None]] = {
    "no_sdk": ("worker_app", None),
    "sdk": ("worker_app", {}),
    "disabled_sdk": ("worker_app", {"OTEL_SDK_DISABLED": "true"}),
    "span_links": ("traced_app", {}),
    "span_links_of_children": ("traced_app", {"INSTRUMENT_IN_CHILDREN": "true"}),
}


@dataclass(frozen=True)
class Traced:
    """A host whose worker has one kind of tracing, and where its spans go."""

    kind: str
    stack: Stack
    sink: OtlpSink
    foreign: Celery


@pytest.fixture(scope="module", params=WORKERS)
def traced(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Traced]:
    """A worker of each kind, and a plain Celery app that publishes to it."""
    app, environ = WORKERS[request.param]
    with OtlpSink() as sink, running_stack(tmp_path_factory.mktemp(request.param)) as stack:
        around = {} if environ is None else {**sink.environ, **environ}
        stack.worker("prefork", 1, app=f"tests.integration.{app}", environ=around)
        foreign = Celery("foreign", broker=stack.server.url_for(0), set_as_current=False)
        yield Traced(request.param, stack, sink, foreign)
        foreign.close()


def nested_rows(stack: Stack) -> tuple[list[AuditRow], list[AuditRow]]:
    """The pair of a skill that calls another, and of the one it calls."""
    result = stack.skills.nested.delay(1)
    child_id = result.get(timeout=20)
    return list(stack.pair(result.id)), list(stack.pair(child_id))


def trace_ids(rows: list[AuditRow]) -> set[str]:
    return {row.payload["trace_id"] for row in rows}


# --- whose trace ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [None, ALWAYS_OFF], ids=["sampled", "unsampled"])
def test_rows_stand_in_the_callers_trace(traced: Traced, sampler: Sampler | None) -> None:
    """Sampling and span mode decide what is exported, not what stands in the rows."""
    tracer = TracerProvider(sampler=sampler).get_tracer("caller")
    with caller(), tracer.start_as_current_span("llm call") as span:
        parent, child = nested_rows(traced.stack)
    assert trace_ids(parent + child) == {f"{span.get_span_context().trace_id:032x}"}


def test_a_caller_without_a_trace_gets_one(traced: Traced) -> None:
    """Both rows and the nested call's agree on a fresh trace."""
    with caller():
        (first, _), (second, _) = (nested_rows(traced.stack) for _ in range(2))
        parent, child = nested_rows(traced.stack)
    assert len(trace_ids(parent + child)) == 1
    assert len(trace_ids([*first, *second, *parent])) == 3


def test_a_caller_whose_sdk_is_instrumented(traced: Traced) -> None:
    """A caller's process with an SDK of its own publishes in its trace, to every worker."""
    with caller(), trace.use_span(PLACE.span()):
        task_id = publish_in_a_process(traced.stack, "traced")
    assert trace_ids(list(traced.stack.pair(task_id))) == {PLACE.trace_id}


def test_spans_of_caller_and_worker_share_the_trace(traced: Traced) -> None:
    """What is exported stands in the caller's trace, or is linked to it where the application
    asked for links: the host leaves an instrumentation alone that is there already."""
    if traced.kind in ("no_sdk", "disabled_sdk"):
        assert traced.sink.spans() == []
        return
    with caller(), trace.use_span(PLACE.span()):
        parent, _ = nested_rows(traced.stack)
    task_id = parent[0].meta["task_id"]
    wait_until(lambda: spans_of(traced, "run/test.nested", task_id), 20)
    (run,) = spans_of(traced, "run/test.nested", task_id)
    if traced.kind == "sdk":
        assert (run.trace_id.hex(), list(run.links)) == (PLACE.trace_id, [])
    else:
        assert run.trace_id.hex() != PLACE.trace_id
        assert [link.trace_id.hex() for link in run.links] == [PLACE.trace_id]
    published = [s for s in traced.sink.spans() if s.name == "apply_async/test.echo"]
    assert sum(span.trace_id.hex() == PLACE.trace_id for span in published) == 1


def spans_of(traced: Traced, name: str, task_id: str) -> list[Any]:
    return [
        span
        for span in traced.sink.spans()
        if span.name == name and task_id in {pair.value.string_value for pair in span.attributes}
    ]


# --- what foreign publishers send -----------------------------------------------------------------

_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
MALFORMED: dict[str, Any] = {
    "empty": "",
    "short": f"00-{_ID[:-1]}-00f067aa0ba902b7-01",
    "long": f"00-{_ID}0-00f067aa0ba902b7-01",
    "more": f"00-{_ID}-00f067aa0ba902b7-01-more",
    "version_ff": f"ff-{_ID}-00f067aa0ba902b7-01",
    "zero_trace": f"00-{'0' * 32}-00f067aa0ba902b7-01",
    "zero_span": f"00-{_ID}-{'0' * 16}-01",
    "upper_case": f"00-{_ID.upper()}-00F067AA0BA902B7-01",
    "no_hex": f"00-{_ID[:-1]}g-00f067aa0ba902b7-01",
    "other_digits": f"00-{_ID[:-1]}\u0663-00f067aa0ba902b7-01",
    "huge": "0" * 100_000,
    "bytes": f"00-{_ID}-00f067aa0ba902b7-01".encode(),
    "number": 7,
    "true": True,
    "none": None,
    "list": [f"00-{_ID}-00f067aa0ba902b7-01"],
    "object": {"traceparent": f"00-{_ID}-00f067aa0ba902b7-01"},
}


def rows_of_foreign(traced: Traced, **headers: Any) -> tuple[list[AuditRow], dict[str, Any]]:
    """The rows of a message that a plain Celery app sent, and the headers of the nested call's."""
    own = InvocationContext("foreign@1", TENANT).headers()
    result = traced.foreign.send_task(
        "test.descend", (1, 1), queue="skills", headers={**own, **headers}
    )
    return list(traced.stack.pair(result.id)), parked(traced.stack)["headers"]


def parked(stack: Stack) -> dict[str, Any]:
    """The next message of the queue that no worker takes from, as it stands in the broker."""
    with redis.Redis.from_url(stack.server.url_for(0)) as broker:
        found = broker.brpop(["parked"], timeout=60)
    assert found is not None
    message: dict[str, Any] = json.loads(found[1])
    return message


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_traceparent_stops_nothing(traced: Traced, name: str) -> None:
    """The skill runs, both rows and the nested call agree on a fresh trace, and the tracestate
    of the trace that nobody could read is gone."""
    headers = {TRACE_HEADER: MALFORMED[name], TRACE_STATE_HEADER: "vendor=opaque"}
    rows, nested = rows_of_foreign(traced, **headers)
    (trace_id,) = trace_ids(rows)
    assert TRACE_ID.fullmatch(trace_id)
    assert trace_id != _ID
    assert Trace.parse(nested[TRACE_HEADER]).trace_id == trace_id  # type: ignore[union-attr]
    assert TRACE_STATE_HEADER not in nested


def test_both_processes_agree_although_one_dies(traced: Traced) -> None:
    """The child wrote the started row, the main process the completed one: one trace in both."""
    headers = InvocationContext("foreign@1", TENANT).headers()
    result = traced.foreign.send_task(
        "test.die", ("sigkill",), queue="skills", headers={**headers, TRACE_HEADER: "malformed"}
    )
    started, completed = traced.stack.pair(result.id)
    assert completed.meta["reason"] == "worker_lost"
    assert started.payload["trace_id"] == completed.payload["trace_id"]


@pytest.mark.parametrize(
    "state",
    [
        "=,;=",
        "k=v" * 10_000,
        ",".join(f"k{n}=v" for n in range(100)),
        "k=\u00e9",
        b"k=v",
        7,
        ["a"],
        {},
    ],
    ids=["malformed", "huge", "too_many", "no_ascii", "bytes", "number", "list", "object"],
)
def test_a_malformed_tracestate_stops_nothing(traced: Traced, state: Any) -> None:
    """The trace is the caller's, whatever stands beside it, and the nested call has no more of it
    than W3C allows."""
    headers = {TRACE_HEADER: PLACE.header(), TRACE_STATE_HEADER: state}
    rows, nested = rows_of_foreign(traced, **headers)
    assert trace_ids(rows) == {PLACE.trace_id}
    assert Trace.parse(nested[TRACE_HEADER]).trace_id == PLACE.trace_id  # type: ignore[union-attr]
    assert len(nested.get(TRACE_STATE_HEADER, "").split(",")) <= 32


def test_a_tracestate_goes_along_with_spans(traced: Traced) -> None:
    """A valid tracestate reaches a nested call where the worker's spans continue the caller's
    trace; elsewhere it ends with the message that brought it, and the trace goes on."""
    headers = {TRACE_HEADER: PLACE.header(), TRACE_STATE_HEADER: "vendor=opaque"}
    rows, nested = rows_of_foreign(traced, **headers)
    assert trace_ids(rows) == {PLACE.trace_id}
    continued = traced.kind in ("sdk", "disabled_sdk")
    assert nested.get(TRACE_STATE_HEADER) == ("vendor=opaque" if continued else None)


# --- republishing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["republish", "descend"])
def test_fifty_republishes_do_not_grow_the_headers(traced: Traced, name: str) -> None:
    """The fiftieth retry, and the fiftieth call in a chain of nested ones, has the headers of the
    first, byte for byte but for what counts the retries, and none nested in another."""
    first, last = (nth_republished(traced, name, times) for times in (1, 50))
    assert first["headers"].keys() == last["headers"].keys()
    assert "headers" not in last["headers"]
    grown = {key for key in first["headers"] if size(first, key) != size(last, key)}
    assert grown <= {"retries"}
    assert last["headers"]["retries"] == (50 if name == "republish" else 0)
    assert Trace.parse(last["headers"][TRACE_HEADER]).trace_id == PLACE.trace_id  # type: ignore[union-attr]
    assert first["properties"].keys() == last["properties"].keys()


def nth_republished(traced: Traced, name: str, times: int) -> dict[str, Any]:
    """The message of the last of so many republishes, with no ETA, whose digits vary."""
    skills = traced.stack.skills
    args = (times,) if name == "republish" else (50, times)
    with caller(), trace.use_span(PLACE.span()):
        getattr(skills, name).apply_async(args, headers={"mine": "kept", TRACE_STATE_HEADER: "v=1"})
    message = parked(traced.stack)
    message["headers"].pop("eta")
    return message


def size(message: dict[str, Any], key: str) -> int:
    return len(json.dumps(message["headers"][key]))
