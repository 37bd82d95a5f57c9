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

from audit.context import InvocationContext, Trace
from audit.row import COMPLETED, STARTED, AuditRow, Reason
from audit.spool import Spool
from tasks import SkillHost, runtime
from tasks.caller import REQUEST_ID_HEADER
from tasks.identity import identify
from tasks.request import SkillRequest
from tests.fakes import DOWN, FakeMemory
from tests.support import TENANT, completed, refused, started

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
    """sev-1 with the whole row, and the worker's event loop goes on."""
    (tmp_path / "file").touch()
    app.conf.audit_spool_dir = str(tmp_path / "file")
    request = receive(app)
    start(app, request)
    memory.plan.append((DOWN, False))
    request.on_failure(einfo(WorkerLostError("signal 9")))
    (alarm,) = [r for r in log.records if getattr(r, "severity", "") == "sev-1"]
    assert AuditRow.from_bytes(alarm.audit_row.encode()).request_id == request.request_id
