"""tasks/request.py: what the worker's main process puts on record, and that it never raises."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.contrib.testing.mocks import TaskMessage
from celery.exceptions import Terminated, TimeLimitExceeded
from celery.worker import state

from audit.context import PERSONA_HEADER, TENANT_HEADER, InvocationContext, Trace
from audit.keeper_http import Exporting
from audit.row import COMPLETED, STARTED, AuditRow, Reason
from audit.spool import Spool
from tasks import SkillHost, runtime
from tasks.caller import REQUEST_ID_HEADER
from tasks.identity import identify
from tasks.reprs import WITHHELD, as_sent
from tasks.request import SkillRequest
from tests.fakes import DOWN, FakeMemory
from tests.support import TENANT, completed, refused, started

SECRET = "customer-4711"
CALLER = InvocationContext("cuo-cpo@0.4.1", TENANT)


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


@pytest.fixture
def app(memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SkillHost]:
    monkeypatch.setattr(runtime, "open_memory", lambda url, timeout: memory)
    with SkillHost("request", broker="memory://", backend="cache+memory://") as app:
        app.conf.update(audit_instrument=False, audit_spool_dir=str(tmp_path))

        @app.skill("test.echo", version="1")
        def echo(x: Any = None) -> Any:
            return x

        yield app


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="audit")
    return caplog


def receive(app: SkillHost, **headers: Any) -> SkillRequest:
    """A message as the worker's main process gets it."""
    message = TaskMessage("test.echo", id=str(uuid4()), **{**CALLER.headers(), **headers})
    message.delivery_info, message.properties = {}, {}
    return SkillRequest(message, app=app, decoded=False, eventer=None)


def start(app: SkillHost, request: SkillRequest) -> AuditRow:
    """What the pool child does first with it."""
    row = started(
        identify(
            request.task,
            request._request_dict,
            InvocationContext.from_headers(request._request_dict),
            runtime.runtime_of(app).worker_id,
        )
    )
    runtime.runtime_of(app).memory.emit(row)
    return row


def einfo(error: BaseException) -> ExceptionInfo:
    try:
        raise error
    except type(error):
        return ExceptionInfo()


# --- receiving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [None, "01JDX3Q6Z0M3J7T4R8W2V5K9AB", 7])
def test_the_request_id_is_made_here_whatever_the_message_claims(
    app: SkillHost, claimed: Any
) -> None:
    """Unknown headers are copied into retries, and a retry is an invocation of its own."""
    headers = {} if claimed is None else {REQUEST_ID_HEADER: claimed}
    one, two = receive(app, **headers), receive(app, **headers)
    assert len({one.request_id, two.request_id, claimed}) == 3
    assert one._request_dict[REQUEST_ID_HEADER] == one.request_id


@pytest.mark.parametrize("bad", [None, "", "00-0-0-0", 5])
def test_both_processes_agree_on_a_trace_that_the_message_lacks(app: SkillHost, bad: Any) -> None:
    """It is made once, here, in the headers that the child gets."""
    request = receive(app, traceparent=bad, tracestate="vendor=opaque")
    assert Trace.parse(request._request_dict["traceparent"]) is not None
    assert "tracestate" not in request._request_dict  # it spoke of another trace


def test_a_trace_that_the_message_has_stays(app: SkillHost) -> None:
    """The caller's."""
    header = Trace.fresh().header()
    received = receive(app, traceparent=header, tracestate="vendor=opaque")._request_dict
    assert (received["traceparent"], received["tracestate"]) == (header, "vendor=opaque")


# --- endings seen from outside --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason", "outcome"),
    [
        (WorkerLostError("signal 9"), Reason.WORKER_LOST, "panic"),
        (SystemExit(1), Reason.WORKER_LOST, "panic"),
        (Terminated("15"), Reason.REVOKED, "panic"),
        (TimeLimitExceeded(3), Reason.HARD_TIME_LIMIT, "timeout"),
    ],
)
def test_an_ending_is_on_record_under_its_reason(
    app: SkillHost, memory: FakeMemory, error: BaseException, reason: Reason, outcome: str
) -> None:
    """One row, of the same invocation, its duration an upper bound."""
    request = receive(app)
    begun = start(app, request)
    request.on_failure(einfo(error))
    (_, row) = memory.stored
    assert (row.kind, row.meta["reason"], row.payload["outcome"]) == (COMPLETED, reason, outcome)
    assert row.meta["duration"] == "upper_bound"
    assert row.request_id == begun.request_id
    assert row.payload["trace_id"] == begun.payload["trace_id"]
    assert row.meta["worker"] == begun.meta["worker"]


def test_a_hard_time_limit_is_one_row_however_often_celery_tells(
    app: SkillHost, memory: FakeMemory
) -> None:
    """on_timeout, and on_failure when the child is gone: the first one stands."""
    request = receive(app)
    start(app, request)
    request.on_accepted(1, 0.0)
    request.on_timeout(False, 3)
    request.on_failure(einfo(WorkerLostError("signal 9")))
    assert memory.kinds() == [STARTED, COMPLETED]
    assert memory.stored[1].meta["reason"] == Reason.HARD_TIME_LIMIT
    assert memory.stored[1].payload["duration_ms"] >= 0


def test_a_soft_time_limit_is_the_childs_to_report(app: SkillHost, memory: FakeMemory) -> None:
    """The body is still running."""
    request = receive(app)
    start(app, request)
    request.on_timeout(True, 3)
    assert memory.kinds() == [STARTED]


def test_a_failure_that_the_child_reported_is_on_record_already(
    app: SkillHost, memory: FakeMemory
) -> None:
    """return_ok: the child did all there is to do."""
    request = receive(app)
    start(app, request)
    request.on_failure(einfo(ValueError("no")), return_ok=True)
    assert memory.kinds() == [STARTED]


def test_under_a_cold_shutdown_the_reason_is_shutdown(
    app: SkillHost, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ended the child then."""
    request = receive(app)
    start(app, request)
    monkeypatch.setattr(state, "should_terminate", True)
    request.on_failure(einfo(WorkerLostError("signal 15")))
    assert memory.stored[1].meta["reason"] == Reason.SHUTDOWN


def test_a_child_that_died_before_its_started_row_bars_it(
    app: SkillHost, memory: FakeMemory
) -> None:
    """No row is made up for what never started."""
    request = receive(app)
    request.on_failure(einfo(WorkerLostError("signal 9")))
    assert memory.kinds() == []
    assert memory.emits == 1


def test_a_child_that_was_faster_keeps_its_ending(app: SkillHost, memory: FakeMemory) -> None:
    """It was lost after its completed row: nothing is added."""
    request = receive(app)
    begun = start(app, request)
    done = AuditRow.from_bytes(
        completed(
            identify(request.task, request._request_dict, CALLER, str(begun.meta["worker"]))
        ).to_bytes()
    )
    memory.emit(done)
    request.on_failure(einfo(WorkerLostError("signal 9")))
    assert memory.kinds() == [STARTED, COMPLETED]
    assert memory.stored[1].meta["reason"] == Reason.RETURNED


def test_a_message_without_a_caller_has_no_ending(app: SkillHost, memory: FakeMemory) -> None:
    """The child refused it, whatever happened then."""
    request = receive(app, **dict.fromkeys(CALLER.headers(), ""))
    request.on_failure(einfo(WorkerLostError("signal 9")))
    assert memory.emits == 0


def test_a_refused_invocation_has_no_ending(
    app: SkillHost, memory: FakeMemory, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """No row, no alarm, nothing in quarantine."""
    request = receive(app)
    memory.emit(refused(identify(request.task, request._request_dict, CALLER, "w")))
    request.on_failure(einfo(WorkerLostError("signal 9")))
    assert len(memory.stored) == 1
    assert [r for r in log.records if r.name == "audit"] == []
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


# --- with the memory out of reach -----------------------------------------------------------------


def test_an_ending_is_spooled_in_an_outage(app: SkillHost, memory: FakeMemory) -> None:
    """And on record after it."""
    request = receive(app)
    start(app, request)
    memory.plan.append((DOWN, False))
    request.on_failure(einfo(WorkerLostError("signal 9")))
    spool = runtime.runtime_of(app).spool
    assert spool.usage().rows == 1
    spool.replay(memory)
    assert memory.kinds() == [STARTED, COMPLETED]


def test_an_ending_stands_behind_what_the_child_spooled(
    app: SkillHost, memory: FakeMemory, tmp_path: Path
) -> None:
    """The body's own ending comes first when the memory is back."""
    request = receive(app)
    begun = start(app, request)
    identity = identify(request.task, request._request_dict, CALLER, str(begun.meta["worker"]))
    Spool(tmp_path, memory.name).keep(completed(identity))
    request.on_failure(einfo(WorkerLostError("signal 9")))
    runtime.runtime_of(app).spool.replay(memory)
    assert memory.kinds() == [STARTED, COMPLETED]
    assert memory.stored[1].meta["reason"] == Reason.RETURNED


def test_with_the_disk_broken_too_the_row_is_in_the_log(
    app: SkillHost, memory: FakeMemory, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """sev-1 with the whole row, counted as a failure, and the worker's event loop goes on."""
    (tmp_path / "file").touch()
    app.conf.audit_spool_dir = str(tmp_path / "file")
    request = receive(app)
    start(app, request)
    memory.plan.append((DOWN, False))
    with Exporting("w", scraped=True) as exporting:
        request.on_failure(einfo(WorkerLostError("signal 9")))
        counted = exporting.text().decode()
    assert 'skill_audit_emit_failures_total{stage="completed"} 1.0' in counted
    (alarm,) = [r for r in log.records if getattr(r, "severity", "") == "sev-1"]
    assert AuditRow.from_bytes(alarm.audit_row.encode()).request_id == request.request_id


# --- what the main process tells of arguments and results -----------------------------------------

KEYS = [{"id": "k1", "secret": "s" * 32, "tenants": [TENANT]}]
OTHER_TENANT = "550e8400-e29b-41d4-a716-446655440001"


def deliver(app: SkillHost, *args: Any, **headers: Any) -> SkillRequest:
    """A message with arguments, as the worker's main process gets it, with its events kept."""
    message = TaskMessage("test.echo", id=str(uuid4()), args=args, kwargs={}, **headers)
    message.delivery_info, message.properties = {}, {}
    return SkillRequest(message, app=app, decoded=False, eventer=Events())


class Events:
    """Celery's dispatcher of events, which keeps them."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))


def told(request: SkillRequest) -> set[Any]:
    """Every place that shows the arguments: attributes, headers for the child, ``inspect``."""
    headers, info = request._request_dict, request.info()
    return {
        request.argsrepr,
        request.kwargsrepr,
        headers["argsrepr"],
        headers["kwargsrepr"],
        info["args"],
        info["kwargs"],
    }


def test_a_foreign_publishers_arguments_are_shown_as_their_hash(app: SkillHost) -> None:
    """It put their reprs into the message, or one of them, or none, or what looks nearly so."""
    hashed = f"sha256:{app.tasks['test.echo'].args_hash((SECRET,), {})}"
    for reprs in (
        {"argsrepr": f"('{SECRET}',)", "kwargsrepr": "{}"},
        {"argsrepr": hashed, "kwargsrepr": f"{{'x': '{SECRET}'}}"},
        {"argsrepr": None, "kwargsrepr": None},
        {"argsrepr": f"{hashed} {SECRET}", "kwargsrepr": f"{hashed} {SECRET}"},
        {"argsrepr": [SECRET], "kwargsrepr": [SECRET]},
    ):
        assert told(deliver(app, SECRET, **CALLER.headers(), **reprs)) == {hashed}


def test_a_hash_that_the_publisher_shows_stays(app: SkillHost) -> None:
    """One that does not know the skill shows the hash of the arguments as sent."""
    sent = as_sent((SECRET,), {})
    shown = deliver(app, SECRET, **CALLER.headers(), argsrepr=sent, kwargsrepr=sent)
    assert told(shown) == {sent}


@pytest.mark.parametrize("args", [(1, 2, 3), (float("nan"),)])
def test_arguments_without_a_hash_by_name_show_no_value(app: SkillHost, args: Any) -> None:
    """The child refuses them; until then ``inspect`` shows what can be shown."""
    assert told(deliver(app, *args, **CALLER.headers())) == {as_sent(args, {})}


@pytest.mark.parametrize(
    "tenant",
    [TENANT, TENANT.upper(), f"urn:uuid:{TENANT}", f"{{{TENANT}}}", TENANT.replace("-", "")],
)
def test_the_tenants_key_makes_the_hash_that_is_shown(app: SkillHost, tenant: str) -> None:
    """However the message spells the tenant, and although a publisher without keys shows a plain
    one, from which small values can be guessed."""
    app.conf.audit_hash_keys = KEYS
    skill = app.tasks["test.echo"]
    plain = f"sha256:{skill.args_hash((7,), {})}"
    key = runtime.runtime_of(app).settings.hash_keys.find("k1")
    headers = {**CALLER.headers(), TENANT_HEADER: tenant}
    request = deliver(app, 7, **headers, argsrepr=plain, kwargsrepr=plain)
    assert told(request) == {skill.args_hash((7,), {}, key)}
    assert request.argsrepr.startswith("hmac:k1:")


def test_another_tenants_hash_is_plain(app: SkillHost) -> None:
    """The key is not for it."""
    app.conf.audit_hash_keys = KEYS
    caller = InvocationContext("cuo-cpo@0.4.1", OTHER_TENANT)
    plain = f"sha256:{app.tasks['test.echo'].args_hash((7,), {})}"
    assert told(deliver(app, 7, **caller.headers())) == {plain}


@pytest.mark.parametrize(
    "headers",
    [{}, {PERSONA_HEADER: "no persona", TENANT_HEADER: TENANT}, {TENANT_HEADER: TENANT}],
    ids=["nobody", "bad persona", "no persona"],
)
def test_with_keys_and_no_usable_caller_nothing_is_shown(
    app: SkillHost, headers: dict[str, Any]
) -> None:
    """The message may be for a tenant that has a key; without keys it is the plain hash."""
    plain = f"sha256:{app.tasks['test.echo'].args_hash((7,), {})}"
    assert told(deliver(app, 7, **headers)) == {plain}
    app.conf.audit_hash_keys = KEYS
    del app.skill_runtime
    assert told(deliver(app, 7, **headers, argsrepr=plain, kwargsrepr=plain)) == {WITHHELD}


def test_inspect_never_shows_arguments(app: SkillHost) -> None:
    """Not when it is asked for them either."""
    request = deliver(app, SECRET, **CALLER.headers())
    assert SECRET not in str(request.info(safe=False)) + str(request.info(safe=True))
    assert request.info()["id"] == request.id


def test_an_event_shows_the_result_as_a_hash(app: SkillHost) -> None:
    """What the child reports is one; what Celery reads back by itself is withheld."""
    request = deliver(app, SECRET, **CALLER.headers())
    hashed = as_sent((), {})
    request.send_event("task-succeeded", result=hashed, runtime=0.1)
    request.send_event("task-succeeded", result=repr(SECRET), runtime=0.1)
    request.send_event("task-started")
    sent = [(kind, fields.get("result")) for kind, fields in request._eventer.sent]
    assert sent == [
        ("task-succeeded", hashed),
        ("task-succeeded", WITHHELD),
        ("task-started", None),
    ]
