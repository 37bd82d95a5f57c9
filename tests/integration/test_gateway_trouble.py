"""A gateway in trouble, and what telemetry tells of its requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from audit.embedded import EmbeddedServer
from tests.integration.gateway import gateway_of
from tests.integration.otlp import OtlpSink
from tests.integration.stack import running_stack
from tests.support import TRACE_ID, wait_until

SECRET = "s3cret-Zanzibar-4711"


def test_spans_join_the_callers_trace_and_hold_no_argument(tmp_path: Path) -> None:
    """Gateway, publishing and running stand in the caller's trace; what is sent has no value."""
    place = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
    with OtlpSink() as sink, running_stack(tmp_path) as stack:
        worker = stack.worker("threads", 2, environ=sink.environ)
        with gateway_of(stack, **sink.environ) as gateway:
            answer = gateway.call(
                "test.fail", {"text": SECRET}, wait=20, traceparent=place, tracestate="vendor=1"
            )
            assert answer.status == 500
            assert gateway.call("test.fail", {SECRET: 1}, traceparent=place).status == 400
            rows = stack.pair(answer.json["task_id"])
            assert {row.payload["trace_id"] for row in rows} == {TRACE_ID}
        worker.stop()
        spans = {span.name: span for span in sink.spans()}
        served = spans["POST /v1/skills/{skill_id}"]
        published, ran = spans["apply_async/test.fail"], spans["run/test.fail"]
        assert {span.trace_id.hex() for span in (served, published, ran)} == {TRACE_ID}
        assert served.parent_span_id.hex() == "00f067aa0ba902b7"
        assert published.trace_state == ran.trace_state == "vendor=1"
        assert SECRET not in "".join(map(str, sink.traces))


def test_a_broker_that_hangs_stops_nobody_else(tmp_path: Path) -> None:
    """Requests for it are answered 503 in bounded time, all others at once; then it goes on."""
    with (
        EmbeddedServer() as broker,
        running_stack(tmp_path) as stack,
    ):
        environ = {"CELERY_BROKER_URL": broker.url, "GATEWAY": '{"threads": 2, "line": 2}'}
        stack.worker("solo", 1, environ={"CELERY_BROKER_URL": broker.url})
        with gateway_of(stack, **environ) as gateway:
            assert gateway.call("test.echo", {"x": 1}, wait=20).status == 200
            broker.pause()
            try:
                with ThreadPoolExecutor(8) as pool:
                    answers = [pool.submit(gateway.call, "test.echo", {}) for _ in range(8)]
                    wait_until(lambda: sum(answer.done() for answer in answers) >= 4)
                    assert gateway.request("GET", "/healthz").status == 200
                    found = [answer.result() for answer in answers]
            finally:
                broker.resume()
            assert {answer.status for answer in found} == {503}
            assert {answer.fault for answer in found} == {"busy", "broker_unreachable"}
            unknown = [answer for answer in found if answer.fault == "broker_unreachable"]
            assert len(unknown) == 2
            assert [gateway.ended(answer)["state"] for answer in unknown] == ["succeeded"] * 2
            wait_until(lambda: gateway.call("test.echo", {}, wait=20).status == 200, 30)


def test_so_many_may_wait(tmp_path: Path) -> None:
    """One more is refused before it is published; who is gone leaves a place."""
    with running_stack(tmp_path) as stack:
        stack.worker("threads", 4)
        with gateway_of(stack, GATEWAY='{"waits": 1}') as gateway:
            release = tmp_path / "release"
            first = threading.Thread(
                target=gateway.call, args=("test.hold", {"path": str(release)}), kwargs={"wait": 20}
            )
            first.start()
            wait_until(stack.journal)
            answer = gateway.call("test.effect", {"mark": "refused"}, wait=20)
            assert (answer.status, answer.fault) == (503, "busy")
            assert "retry-after" in answer.headers
            assert gateway.call("test.effect", {"mark": "accepted"}).status == 202
            release.touch()
            first.join()
            assert gateway.call("test.effect", {"mark": "waited"}, wait=20).status == 200
            assert "refused" not in stack.journal()
