"""tasks/discretion.py, and tasks/task.py around it: what others than the caller get to see."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Task, signals
from celery.app.trace import build_tracer, trace_ok_t
from celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
)

from audit.canonical import digest
from audit.context import InvocationContext, acting_as
from audit.errors import BodyExcludedError, MissingInvocationContext
from audit.row import COMPLETED, STARTED
from tasks import SkillHost, SkillTask, runtime
from tasks.caller import running
from tasks.discretion import masking_first, values_of
from tasks.redaction import install
from tasks.reprs import WITHHELD, shown
from tasks.standin import is_stand_in
from tests.fakes import FakeMemory
from tests.support import TENANT

SECRET = "customer-4711"
OTHER_TENANT = "550e8400-e29b-41d4-a716-446655440001"
PERSONA = "cuo-cpo@0.4.1"
KEYS = [{"id": "k1", "secret": "s" * 32, "tenants": [TENANT]}]


class OwnPanicError(BaseException):
    """A panic of a library's own."""


class Host:
    """An app in this process, with Celery's tracer in the place of a worker."""

    def __init__(self, app: SkillHost, memory: FakeMemory) -> None:
        self.app = app
        self.memory = memory

    def skill(self, body: Callable[..., Any], **options: Any) -> Any:
        """A skill as a worker has it, and not the proxy that the decorator gives."""
        return self.app.tasks[self.app.skill(f"test.{uuid4()}", version="1", **options)(body).name]

    def deliver(self, skill: Any, *args: Any, tenant: str = TENANT, **fields: Any) -> Any:
        """As a pool child does with a message; what the worker's main process gets of it."""
        self.task_id = str(uuid4())
        headers = InvocationContext(PERSONA, tenant).headers()
        request = {"id": self.task_id, "task": skill.name, "delivery_info": {}, **headers, **fields}
        skill.__trace__ = build_tracer(skill.name, skill, app=self.app)
        return skill.__trace__(self.task_id, args, {}, request)

    def stored(self) -> str:
        """What the result backend has of the last task, as it has it."""
        backend = self.app.backend
        return str(backend.get(backend.get_key_for_task(self.task_id)))

    def result(self) -> Any:
        return self.app.backend.get_task_meta(self.task_id)["result"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    memory = FakeMemory()
    monkeypatch.setattr(runtime, "open_memory", lambda url, timeout: memory)
    factory = logging.getLogRecordFactory()
    with SkillHost("discretion", broker="memory://", backend="cache+memory://") as app:
        app.conf.update(audit_instrument=False, audit_spool_dir=str(tmp_path))
        yield Host(app, memory)
    logging.setLogRecordFactory(factory)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "celery.app.trace")
    caplog.set_level(logging.DEBUG, "audit")
    return caplog


@pytest.fixture
def einfos() -> Iterator[list[str]]:
    """What receivers of Celery's signals, OpenTelemetry's among them, get as ``einfo``."""
    told: list[str] = []

    def receive(einfo: Any = None, **_: Any) -> None:
        told.append(f"{einfo.traceback} {einfo.exception!r} {einfo.exc_info[1]!r}")

    signals.task_failure.connect(receive)
    signals.task_retry.connect(receive)
    yield told
    signals.task_failure.disconnect(receive)
    signals.task_retry.disconnect(receive)


def echo(x: Any) -> Any:
    return x


def fail(x: Any) -> None:
    raise ValueError(f"no {x}") from KeyError(x)


def exhausted(self: Any, x: Any) -> None:
    raise self.retry()


def retried(self: Any, x: Any) -> None:
    raise self.retry(exc=ValueError(f"no {x}"), countdown=0)


def leaves(error: BaseException) -> Callable[..., None]:
    def body(x: Any) -> None:
        raise error

    return body


def tells(told: Any, log: Any, einfos: list[str]) -> str:
    """All that leaves the child, but for the result backend."""
    records = "".join(f"{vars(record)} {record.exc_text}" for record in log.records)
    return f"{told.retval!r} {pickle.dumps(told.retval)!r} {told.retstr} {records} {einfos}"


# --- success --------------------------------------------------------------------------------------


def test_the_worker_is_told_the_hash_of_the_result(host: Host, log: Any) -> None:
    """The caller gets the result, the rows have the same hash, everybody else sees it."""
    told = host.deliver(host.skill(echo), SECRET)
    hashed = shown(digest(SECRET))
    assert (told.retval, told.info, told.retstr) == (SECRET, None, hashed)
    assert told.runtime is not None
    assert host.result() == SECRET
    assert shown(str(host.memory.stored[1].payload["result_hash"])) == hashed
    (record,) = [record for record in log.records if record.name == "celery.app.trace"]
    assert hashed in record.getMessage()
    assert SECRET not in str(vars(record))


def test_a_keyed_hash_for_the_tenant_the_key_is_for(host: Host) -> None:
    """And the plain one for another; in the rows as in what is shown."""
    host.app.conf.audit_hash_keys = KEYS
    skill = host.skill(echo)
    assert host.deliver(skill, SECRET).retstr.startswith("hmac:k1:")
    keyed = host.memory.stored
    assert str(keyed[0].payload["args_hash"]).startswith("hmac:k1:")
    assert host.deliver(skill, SECRET, tenant=OTHER_TENANT).retstr == shown(digest(SECRET))
    plain = host.memory.stored[2:]
    assert plain[0].payload["args_hash"] == digest({"x": SECRET})
    ring = runtime.runtime_of(host.app).settings.hash_keys
    assert keyed[0].payload["args_hash"] == skill.args_hash((SECRET,), {}, ring.find("k1"))


def test_what_was_not_run_again_has_no_hash(host: Host) -> None:
    """Celery skips a redelivered task that succeeded; nobody ran, and nothing is shown."""
    skill = host.skill(echo)
    skill.__trace__ = lambda *message: trace_ok_t(SECRET, None, 0.1, SECRET)
    assert skill.__trace__("id", [SECRET], {}, {}).retstr == WITHHELD


def test_nothing_runs_any_more_when_a_task_has_ended(host: Host) -> None:
    """The next task of the process, and its log, are not masked with these values."""
    host.deliver(host.skill(echo), SECRET)
    host.deliver(host.skill(fail), SECRET)
    assert running() is None


def test_a_plain_task_is_untouched(host: Host, log: Any) -> None:
    """Its result is shown as Celery shows it, its error is the error."""
    plain = host.app.task(echo, name="test.plain", shared=False)
    assert host.deliver(plain, SECRET).retstr == repr(SECRET)
    assert SECRET in log.text
    failing = host.app.task(fail, name="test.plain-fails", shared=False)
    error = host.deliver(failing, SECRET).retval.exception
    assert type(error) is ValueError
    assert SECRET in str(error)


# --- failure --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["masked", "type"])
def test_a_failure_is_masked_for_all_but_the_caller(
    host: Host, log: Any, einfos: list[str], setting: str
) -> None:
    """The result backend has the error itself."""
    host.app.conf.audit_error_message = setting
    told = host.deliver(host.skill(fail), SECRET)
    assert SECRET not in tells(told, log, einfos)
    assert len(einfos) == 1
    assert is_stand_in(told.retval.exception)
    assert str(told.retval.exception) == ("no ***" if setting == "masked" else "")
    assert str(host.result()) == f"no {SECRET}"
    assert host.memory.stored[1].payload["error_message"] == (
        "ValueError: no ***" if setting == "masked" else "ValueError"
    )


def test_no_more_retries_show_no_arguments(host: Host, log: Any, einfos: list[str]) -> None:
    """Celery's text quotes all of them."""
    told = host.deliver(host.skill(exhausted, bind=True, max_retries=0), SECRET)
    assert isinstance(told.retval.exception, MaxRetriesExceededError)
    assert SECRET in str(host.result())
    assert SECRET not in tells(told, log, einfos)
    assert "Can't retry" in str(told.retval.exception)


def test_a_retry_is_masked_for_all_but_the_caller(host: Host, log: Any, einfos: list[str]) -> None:
    """Celery retries by the class of what it gets."""
    told = host.deliver(host.skill(retried, bind=True), SECRET)
    assert isinstance(told.retval.exception, Retry)
    assert str(told.retval.exception).endswith("ValueError('no ***')")
    assert SECRET not in tells(told, log, einfos)
    assert len(einfos) == 1
    assert SECRET in host.stored()


@pytest.mark.parametrize("error", [Reject(SECRET, requeue=True), Ignore(SECRET)], ids=repr)
def test_what_no_hook_sees_is_masked_when_it_leaves(
    host: Host, log: Any, einfos: list[str], error: Exception
) -> None:
    """Celery logs a reject and an ignore by itself."""
    told = host.deliver(host.skill(leaves(error)), SECRET)
    assert SECRET not in tells(told, log, einfos)
    assert error.args[0] == "***"


@pytest.mark.parametrize("error", [Reject("salary 4000"), Ignore("salary 4000")], ids=repr)
def test_what_no_hook_sees_has_no_text_where_errors_have_none(
    host: Host, log: Any, error: Exception
) -> None:
    """Not in Celery's log either, which could only be masked with the arguments."""
    host.app.conf.audit_error_message = "type"
    told = host.deliver(host.skill(leaves(error)), SECRET)
    assert "salary" not in tells(told, log, [])


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
def test_an_error_of_celerys_own_is_masked_for_the_worker(
    host: Host, log: Any, einfos: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it tells the main process of a backend that fails has gone through no hook."""

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"cannot store {SECRET}")

    monkeypatch.setattr(host.app.backend, "mark_as_done", broken)
    told = host.deliver(host.skill(echo), SECRET)
    assert str(told.retval.exception) == "cannot store ***"
    assert SECRET not in tells(told, log, einfos)


@pytest.mark.parametrize(
    "error", [SystemExit(SECRET), KeyboardInterrupt(SECRET), OwnPanicError(SECRET, 5)], ids=repr
)
def test_what_ends_a_process_is_masked(host: Host, error: BaseException) -> None:
    """Celery hands it to the pool, which prints it."""
    with pytest.raises(type(error)) as caught:
        host.deliver(host.skill(leaves(error)), SECRET)
    assert caught.value is error
    assert error.args[0] == "***"


def test_expected_errors_stay_expected(host: Host, log: Any) -> None:
    """Celery asks isinstance of what it is told: no traceback, and INFO."""
    host.deliver(host.skill(fail, throws=(ValueError,)), SECRET)
    (record,) = [r for r in log.records if r.name == "celery.app.trace"]
    assert "raised expected: ValueError('no ***')" in record.getMessage()
    assert record.levelno == logging.INFO
    log.clear()
    host.deliver(host.skill(fail, throws=(KeyError,)), SECRET)
    assert "raised unexpected" in log.text


def test_an_error_before_the_invocation_is_masked_with_the_arguments(
    host: Host, log: Any, einfos: list[str]
) -> None:
    """A before_start of an application's own fails before there is one."""

    class Own(SkillTask):
        abstract = True

        def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
            raise ValueError(f"no {args}")

    install()  # as a worker does when it boots
    told = host.deliver(host.skill(echo, base=Own), SECRET)
    assert SECRET not in tells(told, log, einfos)


def test_parameter_names_are_no_values() -> None:
    """They stand in the code, and in many an error's text."""
    assert values_of((1,), {"customer": 2}) == ((1,), [2])
    assert values_of((1,), None) == ((1,), None)


@pytest.mark.parametrize("redact", [True, False])
def test_without_redaction_the_log_says_the_error_as_it_was(
    host: Host,
    log: Any,
    einfos: list[str],
    redact: bool,
    request: pytest.FixtureRequest,
) -> None:
    """For development; events and the worker's main process get it masked all the same."""
    host.app.conf.audit_redact_logs = redact
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)  # whatever another test has installed
    request.addfinalizer(lambda: logging.setLogRecordFactory(before))
    told = host.deliver(host.skill(fail), SECRET)
    assert (logging.getLogRecordFactory() is logging.LogRecord) is not redact
    own = [record for record in log.records if record.name == "audit" and record.exc_info]
    assert len(own) == (0 if redact else 1)
    assert (SECRET in log.text) is not redact
    log.clear()
    assert SECRET not in tells(told, log, einfos)


# --- hooks of an application's own ----------------------------------------------------------------


class Hooked(SkillTask):
    """Never calls super()."""

    abstract = True
    seen: list[str]

    def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        self.seen.append(f"{einfo.exception!r} {einfo.traceback}")
        assert str(exc) == f"no {SECRET}"

    def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        self.seen.append(f"{einfo.exception!r} {einfo.traceback}")


class Below(Hooked):
    abstract = True


class Calling(Hooked):
    abstract = True

    def on_failure(self, *args: Any) -> None:
        super().on_failure(*args)
        SkillTask.on_failure(self, *args)


@pytest.mark.parametrize("base", [Hooked, Below, Calling])
@pytest.mark.parametrize("body", [fail, retried])
def test_a_hook_that_never_calls_ours_sees_masked_texts(
    host: Host, log: Any, einfos: list[str], base: type[SkillTask], body: Any
) -> None:
    """It and all that come after it; the error itself it gets, as the arguments."""
    base.seen = []  # type: ignore[attr-defined]
    told = host.deliver(host.skill(body, base=base, bind=body is retried), SECRET)
    (seen,) = base.seen  # type: ignore[attr-defined]
    assert SECRET not in seen + tells(told, log, einfos)
    assert [row.kind for row in host.memory.stored] == [STARTED, COMPLETED]


def test_a_hook_is_wrapped_once(host: Host) -> None:
    """However often its class is bound; a class of its own of each skill leaves the base alone."""
    kind = type(host.skill(echo, base=Hooked))
    assert kind.on_failure is not Hooked.on_failure
    hook = kind.on_failure
    kind.bind(host.app)
    assert kind.on_failure is hook
    assert masking_first(hook) is hook
    assert hook.__name__ == "on_failure"
    assert type(host.skill(echo)).on_failure is SkillTask.on_failure


def test_hooks_given_as_options_are_masked_first(host: Host, log: Any, einfos: list[str]) -> None:
    """Celery makes attributes of a skill's class of them."""
    seen: list[str] = []

    def on_failure(self: Any, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        seen.append(repr(einfo.exception))

    told = host.deliver(host.skill(fail, on_failure=on_failure), SECRET)
    assert seen == ["ValueError('no ***')"]
    assert SECRET not in tells(told, log, einfos)


# --- eager and direct calls -----------------------------------------------------------------------


def test_an_eager_caller_gets_the_error_itself(host: Host) -> None:
    """Object, class, causes and frames, as from Celery; it is in this very process."""
    error = ValueError(f"no {SECRET}")
    skill = host.skill(leaves(error))
    with acting_as(PERSONA, tenant_id=TENANT):
        result = skill.apply((SECRET,))
    assert result.state == "FAILURE"
    assert result.result is error
    assert any(frame.name == "body" for frame in traceback.extract_tb(error.__traceback__))
    with pytest.raises(ValueError, match=SECRET):
        result.get()


@pytest.mark.parametrize("error", [ValueError(SECRET), Reject(SECRET), OwnPanicError(SECRET)])
def test_an_eager_caller_that_asks_for_it_is_thrown_the_error(
    host: Host, error: BaseException
) -> None:
    """As it is, whatever it is."""
    skill = host.skill(leaves(error))
    with acting_as(PERSONA, tenant_id=TENANT):
        if isinstance(error, Reject):
            skill.apply((SECRET,), throw=True)
        else:
            with pytest.raises(type(error)) as caught:
                skill.apply((SECRET,), throw=True)
            assert caught.value is error
    assert error.args[0] == SECRET


def test_a_direct_caller_gets_everything_as_it_is(host: Host) -> None:
    """Result and error of a body-excluded skill as well: nothing is told to anybody else."""
    error = ValueError(SECRET)
    with acting_as(PERSONA, tenant_id=TENANT):
        assert host.skill(echo, body_excluded=True)(SECRET) == SECRET
        for body_excluded in (True, False):
            with pytest.raises(ValueError, match=SECRET) as caught:
                host.skill(leaves(error), body_excluded=body_excluded)(SECRET)
            assert caught.value is error
    assert running() is None


def test_an_eager_call_without_a_caller_is_refused_here(host: Host) -> None:
    """As publishing would be."""
    with pytest.raises(MissingInvocationContext):
        host.skill(echo).apply((SECRET,))


# --- body excluded --------------------------------------------------------------------------------


def reference(host: Host, result: Any) -> dict[str, str]:
    return {"request_id": host.memory.stored[-1].request_id, "result_hash": shown(digest(result))}


def test_the_caller_of_an_excluded_body_gets_a_reference(host: Host, log: Any) -> None:
    """Which names the rows, and the same hash; the result is nowhere."""
    told = host.deliver(host.skill(echo, body_excluded=True), SECRET)
    assert told.retval == host.result() == reference(host, SECRET)
    assert SECRET not in host.stored() + tells(told, log, [])
    with acting_as(PERSONA, tenant_id=TENANT):
        eager = host.skill(echo, body_excluded=True).apply((SECRET,))
    assert eager.get() == reference(host, SECRET)


def test_the_caller_of_an_excluded_body_gets_the_class_of_its_error(
    host: Host, log: Any, einfos: list[str]
) -> None:
    """And the request_id; neither text nor causes, nor in the traceback."""
    told = host.deliver(host.skill(fail, body_excluded=True), SECRET)
    found = host.result()
    assert isinstance(found, BodyExcludedError)
    assert found.args == ("ValueError", host.memory.stored[-1].request_id)
    assert SECRET not in host.stored() + tells(told, log, einfos)
    assert host.memory.stored[1].payload["error_message"] == "ValueError"
    with acting_as(PERSONA, tenant_id=TENANT):
        eager = host.skill(fail, body_excluded=True).apply((SECRET,))
    assert isinstance(eager.result, BodyExcludedError)
    assert eager.result.__cause__ is eager.result.__context__ is None


class UnlikeError(Exception):
    """Has what no argument has."""


@pytest.mark.parametrize(
    "error",
    [
        UnlikeError("salary 4000"),
        Reject("salary 4000"),
        Ignore("salary 4000"),
        Retry("salary 4000", exc=UnlikeError("salary 4000")),
        MemoryError("salary 4000"),
        SoftTimeLimitExceeded("salary 4000"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_of_an_excluded_body_says_anything(
    host: Host, log: Any, einfos: list[str], error: Exception
) -> None:
    """Whatever its class is good for, it keeps; of its text nothing leaves the child."""
    told = host.deliver(host.skill(leaves(error), body_excluded=True), SECRET)
    everything = host.stored() + tells(told, log, einfos)
    assert "salary" not in everything
    assert SECRET not in everything


def test_a_retry_of_an_excluded_body_says_nothing_to_its_caller(
    host: Host, log: Any, einfos: list[str]
) -> None:
    """It is published again all the same."""
    told = host.deliver(host.skill(retried, bind=True, body_excluded=True), SECRET)
    assert isinstance(told.retval.exception, Retry)
    assert host.app.backend.get_state(host.task_id) == "RETRY"
    assert SECRET not in host.stored() + tells(told, log, einfos)


def test_what_the_host_raises_in_an_excluded_body_says_what_it_is(host: Host) -> None:
    """Its parts are for the caller; what came before it is left out."""

    def body(x: Any) -> None:
        try:
            raise KeyError(x)
        except KeyError as error:
            raise MissingInvocationContext from error

    host.deliver(host.skill(body, body_excluded=True), SECRET)
    assert isinstance(host.result(), MissingInvocationContext)
    assert SECRET not in host.stored()


def test_plain_tasks_have_celerys_own_hooks() -> None:
    """Nothing of this is put on Celery's class."""
    assert not hasattr(Task.on_failure, "masks")
    assert Task.__trace__ is None
