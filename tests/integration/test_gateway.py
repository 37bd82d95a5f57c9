"""Skills over real HTTP: what a caller gets, and what stands in the rows for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from audit.canonical import digest
from audit.embedded import EmbeddedServer
from audit.row import REFUSED
from tests.integration.gateway import (
    OTHER_TENANT,
    OTHER_TOKEN,
    Gateway,
    gateway_of,
)
from tests.integration.stack import PERSONA, Stack, running_stack
from tests.support import TENANT, TRACE_ID, wait_until

SECRET = "s3cret-Zanzibar-4711"
JSON = {"Content-Type": "application/json"}
ECHO = "/v1/skills/test.echo"


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Iterator[Gateway]:
    """A gateway before the module's worker; at its end no argument stands in its log."""
    with gateway_of(stack) as gateway:
        yield gateway
    assert SECRET not in gateway.text()
    assert "Traceback" not in gateway.text()


def test_published_and_asked_for(gateway: Gateway, stack: Stack) -> None:
    """202 with a status link, which tells of the result; the rows are those of any call."""
    answer = gateway.call("test.echo", {"x": {"deep": [1, None, "é"]}})
    assert answer.status == 202
    assert answer.json["state"] == "pending"
    assert answer.json["status_link"] == answer.headers["location"]
    assert answer.headers["cache-control"] == "no-store"
    ended = gateway.ended(answer)
    task_id = answer.json["task_id"]
    assert ended == {
        "state": "succeeded",
        "task_id": task_id,
        "result": {"deep": [1, None, "é"]},
    }
    started, completed = stack.pair(task_id)
    assert started.payload["args_hash"] == digest({"x": {"deep": [1, None, "é"]}})
    assert started.payload["caller_persona"] == PERSONA
    assert started.tenant_id == completed.tenant_id == TENANT
    assert started.payload["trace_id"] == answer.json["trace_id"]
    assert started.meta["parent_request_id"] is None


def test_waited_for(gateway: Gateway) -> None:
    """200 with the result; what JSON has no word for goes both ways as Celery writes it."""
    day = {"__type__": "date", "__value__": "2026-11-29"}
    answer = gateway.call("test.echo", {"x": day}, wait=20)
    assert answer.status == 200
    assert answer.json["state"] == "succeeded"
    assert answer.json["result"]["__value__"] == "2026-11-29"


def test_the_human_goes_along(gateway: Gateway, stack: Stack) -> None:
    """X-On-Behalf-Of is in the rows."""
    answer = gateway.call("test.echo", {}, wait=20, X_On_Behalf_Of="jane@example.org")
    started, _ = stack.pair(answer.json["task_id"])
    assert started.meta["on_behalf_of"] == "jane@example.org"


def test_the_trace_is_joined(gateway: Gateway, stack: Stack) -> None:
    """The caller's trace id is in both rows; a malformed one stops nothing."""
    place = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
    answer = gateway.call("test.echo", {}, wait=20, traceparent=place, tracestate="v=1")
    assert answer.json["trace_id"] == TRACE_ID
    rows = stack.pair(answer.json["task_id"])
    assert {row.payload["trace_id"] for row in rows} == {TRACE_ID}
    answer = gateway.call("test.echo", {}, wait=20, traceparent="00-nonsense")
    assert answer.status == 200
    rows = stack.pair(answer.json["task_id"])
    assert {row.payload["trace_id"] for row in rows} == {answer.json["trace_id"]} != {TRACE_ID}


def test_time_runs_out(gateway: Gateway, tmp_path: Path) -> None:
    """504 with the status link, under which the result is found later."""
    release = tmp_path / "release"
    answer = gateway.call("test.hold", {"path": str(release)}, wait=0.05)
    assert (answer.status, answer.fault) == (504, "wait_over")
    asked = gateway.request("GET", answer.headers["location"])
    assert asked.json["state"] == "pending"
    release.touch()
    assert gateway.ended(answer)["result"] == "released"


def test_a_failure_tells_what_its_row_tells(gateway: Gateway, stack: Stack) -> None:
    """500 with the error's type and masked text, at once and under the link."""
    answer = gateway.call("test.fail", {"text": SECRET}, wait=20)
    assert (answer.status, answer.fault) == (500, "skill_failed")
    _, completed = stack.pair(answer.json["task_id"])
    told = {"type": "ValueError", "message": completed.payload["error_message"]}
    assert answer.json["error"] == told
    assert told["message"].startswith("ValueError: cannot use ")
    assert gateway.ended(answer)["error"] == told
    assert SECRET.encode() not in answer.body


def test_an_excluded_body_stays_excluded(gateway: Gateway, stack: Stack) -> None:
    """Its result is the reference, its error has no text."""
    answer = gateway.call("test.excluded", {"x": SECRET}, wait=20)
    _, completed = stack.pair(answer.json["task_id"])
    assert answer.json["result"] == {
        "request_id": completed.request_id,
        "result_hash": f"sha256:{completed.payload['result_hash']}",
    }
    assert SECRET.encode() not in answer.body
    failed = gateway.call("test.excluded", {"x": SECRET, "fails": True}, wait=20)
    assert failed.status == 500
    assert SECRET.encode() not in failed.body


def test_a_result_that_nobody_keeps(gateway: Gateway, stack: Stack) -> None:
    """Such a skill is published without a link, and nobody can wait for it."""
    answer = gateway.call("test.private", {"mark": "kept by nobody"})
    assert answer.status == 202
    assert answer.json["status_link"] is None
    assert "location" not in answer.headers
    stack.pair(answer.json["task_id"])
    waited = gateway.call("test.private", {"mark": "not run"}, wait=5)
    assert (waited.status, waited.fault) == (400, "no_result_kept")
    assert "not run" not in stack.journal()


@pytest.mark.parametrize(
    ("skill_id", "arguments", "status", "fault"),
    [
        ("test.plain", {"x": 1}, 404, "unknown_skill"),
        ("celery.ping", {}, 404, "unknown_skill"),
        ("test.nothing", {}, 404, "unknown_skill"),
        ("test.effect", {}, 400, "bad_arguments"),
        ("test.effect", {"mark": SECRET, "other": SECRET}, 400, "bad_arguments"),
        ("test.effect", {"mark": SECRET, f"{SECRET} x": 1}, 400, "bad_arguments"),
        ("test.effect", {"mark": {SECRET: float("nan")}}, 400, "uncanonical_arguments"),
        ("test.effect", f'{{"mark": "{SECRET}\\ud800"}}'.encode(), 400, "uncanonical_arguments"),
        ("test.effect", f'["{SECRET}"]'.encode(), 400, "malformed_body"),
        ("test.effect", f'{{"mark": "{SECRET}'.encode(), 400, "malformed_body"),
        ("test.effect", f'{{"mark": "{SECRET}", "mark": 1}}'.encode(), 400, "malformed_body"),
        ("test.effect", b'{"mark": "\xff' + SECRET.encode() + b'"}', 400, "malformed_body"),
        ("test.effect", b"[" * 100_000, 400, "malformed_body"),
        ("test.effect", {"mark": SECRET * 60_000}, 413, "body_too_large"),
    ],
)
def test_what_cannot_be_called(
    gateway: Gateway, stack: Stack, skill_id: str, arguments: object, status: int, fault: str
) -> None:
    """Nothing is published, no body runs, and the answer repeats nothing of the arguments."""
    before = len(stack.rows())
    answer = gateway.call(skill_id, arguments, wait=5)
    assert (answer.status, answer.fault) == (status, fault)
    assert SECRET.encode() not in answer.body
    assert len(stack.rows()) == before
    assert SECRET not in "".join(stack.journal())


def test_the_place_of_a_value_is_named(gateway: Gateway) -> None:
    """A caller learns where in its arguments the fault is."""
    answer = gateway.call("test.effect", {"mark": ["ok", float("inf")]})
    assert "$.mark[1]" in answer.json["detail"]


@pytest.mark.parametrize(
    ("given", "status", "fault"),
    [
        ({"tenant": None}, 400, "invalid_context"),
        ({"persona": None}, 400, "invalid_context"),
        ({"tenant": "550e8400"}, 400, "invalid_context"),
        ({"tenant": "00000000-0000-0000-0000-000000000000"}, 400, "invalid_context"),
        ({"persona": "cuo cpo"}, 400, "invalid_context"),
        ({"persona": "x" * 300}, 400, "invalid_context"),
        ({"X_On_Behalf_Of": "jane doe"}, 400, "invalid_context"),
        ({"tenant": OTHER_TENANT}, 403, "not_allowed"),
        ({"persona": "ceo@1"}, 403, "not_allowed"),
        ({"X_On_Behalf_Of": "eve@example.com"}, 403, "not_allowed"),
        ({"token": None}, 401, "unauthenticated"),
        ({"token": "wrong-token-0123456789abcdef01234567"}, 401, "unauthenticated"),
        ({"token": "short"}, 401, "unauthenticated"),
        ({"Content_Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content_Encoding": "gzip"}, 415, "unsupported_media_type"),
        ({"wait": -1}, 400, "invalid_query"),
        ({"wait": 1e9}, 400, "invalid_query"),
        ({"wait": float("nan")}, 400, "invalid_query"),
    ],
)
def test_who_may_not_call(
    gateway: Gateway, stack: Stack, given: dict[str, str], status: int, fault: str
) -> None:
    """Refused before anything is published."""
    before = len(stack.rows())
    answer = gateway.call("test.effect", {"mark": "never"}, **given)  # type: ignore[arg-type]
    assert (answer.status, answer.fault) == (status, fault)
    assert ("www-authenticate" in answer.headers) == (status == 401)
    assert len(stack.rows()) == before
    assert "never" not in stack.journal()


def test_a_header_given_twice_is_no_context(gateway: Gateway) -> None:
    """Two readers could take two different ones of it."""
    headers = [
        *JSON.items(),
        ("X-Audit-Persona", PERSONA),
        ("X-Audit-Tenant", TENANT),
        ("X-Audit-Tenant", OTHER_TENANT),
    ]
    answer = gateway.request("POST", ECHO, b"{}", headers)
    assert (answer.status, answer.fault) == (400, "invalid_context")


@pytest.mark.parametrize(
    "query",
    [
        f"x={SECRET}",
        "seconds=5",
        "wait=5&x=5",
        "wait=5&wait=6",
        "wait=1_0",
        "wait=%D9%A1",
        "wait=%205",
    ],
)
def test_a_query_is_no_place_for_arguments(gateway: Gateway, query: str) -> None:
    """Refused, and the access log does not keep it."""
    headers = {"X-Audit-Persona": PERSONA, "X-Audit-Tenant": TENANT, **JSON}
    answer = gateway.request("POST", f"/v1/skills/test.echo?{query}", b"{}", headers)
    assert (answer.status, answer.fault) == (400, "invalid_query")
    wait_until(lambda: "/v1/skills/test.echo HTTP" in gateway.text())
    assert SECRET not in gateway.text()


def test_a_body_too_large_is_not_read(gateway: Gateway) -> None:
    """Refused by its length alone, and one that tells no length as soon as it has grown so far."""
    headers = {"X-Audit-Persona": PERSONA, "X-Audit-Tenant": TENANT, **JSON}
    told = gateway.request("POST", ECHO, None, {**headers, "Content-Length": "1048577"})
    assert (told.status, told.fault) == (413, "body_too_large")
    part = b"%x\r\n%s\r\n" % (1 << 19, b" " * (1 << 19))
    chunks = part + part + b"2\r\n{}\r\n0\r\n\r\n"
    grown = gateway.request("POST", ECHO, chunks, {**headers, "Transfer-Encoding": "chunked"})
    assert (grown.status, grown.fault) == (413, "body_too_large")


def test_addresses_and_methods(gateway: Gateway) -> None:
    """404 and 405 have the shape of every other problem; /healthz needs no token."""
    assert gateway.request("GET", "/v2").fault == "not_found"
    assert gateway.request("POST", "/v1/skills/test.echo/", b"").fault == "not_found"
    answer = gateway.request("GET", "/v1/skills/test.echo")
    assert (answer.status, answer.fault) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert gateway.request("GET", "/healthz", token=None).json == {"status": "ok"}
    assert gateway.request("GET", "/openapi.json", token=None).status == 401
    assert "/v1/skills/test.echo" in gateway.request("GET", "/openapi.json").json["paths"]


def test_the_link_of_another_tenant(gateway: Gateway) -> None:
    """404, as for a link that is none, or altered."""
    answer = gateway.call("test.echo", {"x": SECRET}, wait=20)
    link = answer.json["status_link"]
    assert gateway.request("GET", link).json["result"] == SECRET
    altered = link[:-40] + ("A" if link[-40] != "A" else "B") + link[-39:]
    for path, token in ((link, OTHER_TOKEN), (altered, None), ("/v1/invocations/x", None)):
        found = gateway.request("GET", path, **({"token": token} if token else {}))
        assert (found.status, found.fault) == (404, "unknown_invocation")
        assert SECRET.encode() not in found.body
    assert gateway.request("GET", link, token=None).status == 401


def subscriptions(stack: Stack) -> int:
    """How often anybody has subscribed to anything on the server so far."""
    stats = stack.app.backend.client.info("commandstats")
    return int(stats.get("cmdstat_subscribe", {}).get("calls", 0))


def test_fifty_at_once_are_all_answered(gateway: Gateway, stack: Stack) -> None:
    """Each waits for its own result and gets it; no result is subscribed to by the gateway."""
    gate, before = threading.Barrier(50), subscriptions(stack)

    def one(number: int) -> object:
        gate.wait(30)
        return gateway.call("test.echo", {"x": number}, wait=30).json["result"]

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(one, range(50))) == list(range(50))
    assert subscriptions(stack) == before


def test_the_memory_away_is_503(tmp_path: Path) -> None:
    """The literal 503: not dispatched, Retry-After, no effect; the link says the same."""
    with (
        EmbeddedServer() as memory_server,
        running_stack(tmp_path, memory_url=memory_server.url) as stack,
    ):
        stack.environ["AUDIT_EMIT_TIMEOUT"] = "0.5"
        stack.worker("solo", 1)
        with gateway_of(stack) as gateway:
            assert gateway.call("test.effect", {"mark": "before"}, wait=20).status == 200
            memory_server.kill()
            answer = gateway.call("test.effect", {"mark": SECRET}, wait=20)
            assert (answer.status, answer.fault) == (503, "not_on_record")
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json["error"]["type"] == "AuditEmitFailed"
            assert gateway.ended(answer)["error"]["type"] == "AuditEmitFailed"
            assert stack.journal() == ["before"]
            assert SECRET not in gateway.text() + answer.body.decode()
            memory_server.start()
            again = wait_until(
                lambda: (
                    (a := gateway.call("test.effect", {"mark": "after"}, wait=20)).status == 200
                    and a
                ),
                30,
            )
            assert again.json["result"] == "after"


def test_the_broker_away_is_503(tmp_path: Path) -> None:
    """Nothing hangs, nothing is told but that; once it is back, calls go through."""
    with (
        EmbeddedServer(directory=tmp_path / "broker") as broker,
        running_stack(tmp_path) as stack,
    ):
        environ = {"CELERY_BROKER_URL": broker.url}
        stack.worker("solo", 1, environ=environ)
        with gateway_of(stack, **environ) as gateway:
            assert gateway.call("test.effect", {"mark": "before"}, wait=20).status == 200
            broker.kill()
            answer = gateway.call("test.effect", {"mark": SECRET})
            assert (answer.status, answer.fault) == (503, "broker_unreachable")
            assert "retry-after" in answer.headers
            assert answer.headers["location"] == answer.json["status_link"]
            assert gateway.request("GET", "/healthz").status == 200
            broker.start()
            wait_until(lambda: gateway.call("test.echo", {}).status == 202, 30)
        assert SECRET not in gateway.text() + answer.body.decode()
        assert stack.journal() == ["before"]


def test_contexts_are_signed(tmp_path: Path) -> None:
    """With context keys the worker takes the gateway's calls; a limited key is a 403."""
    ring = [{"id": "k", "secret": "k" * 40, "tenants": [TENANT]}]
    keys = {"AUDIT_CONTEXT_KEYS": json.dumps(ring)}
    wrong = {"AUDIT_CONTEXT_KEYS": json.dumps([{"id": "k", "secret": "w" * 40}])}
    with running_stack(tmp_path) as stack:
        stack.worker("solo", 1, environ=keys)
        with gateway_of(stack, **keys) as gateway:
            assert gateway.call("test.echo", {"x": 1}, wait=20).json["result"] == 1
            answer = gateway.call("test.echo", {}, tenant=OTHER_TENANT, token=OTHER_TOKEN)
            assert (answer.status, answer.fault) == (403, "not_allowed")
        with gateway_of(stack, **wrong) as gateway:
            answer = gateway.call("test.effect", {"mark": "unproven"}, wait=20)
            assert (answer.status, answer.fault) == (403, "refused")
        assert len(stack.rows(kind=REFUSED)) == 1
        assert stack.journal() == []
