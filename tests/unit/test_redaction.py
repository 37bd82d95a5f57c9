"""tasks/redaction.py: log records without values, whoever writes them and whoever keeps them."""

from __future__ import annotations

import json
import logging
import logging.handlers
import pickle
import queue
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from billiard.einfo import ExceptionWithTraceback
from celery import Celery
from celery._state import _task_stack
from celery.app import trace
from celery.exceptions import NotRegistered, Reject
from celery.utils.log import get_task_logger
from celery.worker.consumer.consumer import (
    INVALID_TASK_ERROR,
    MESSAGE_DECODE_ERROR,
    UNKNOWN_FORMAT,
    UNKNOWN_TASK_ERROR,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from audit.context import InvocationContext
from audit.errors import AuditEmitFailed
from audit.masking import Masker
from tasks import redaction
from tasks.caller import ChildState, one_task, runs
from tasks.redaction import Redaction, install
from tasks.reprs import WITHHELD
from tasks.standin import stand_in
from tests.support import HASH, TENANT

SECRET = "customer-4711"
SHOWN = f"sha256:{HASH}"
RESULT = f"sha256:{HASH[::-1]}"
CALLER = InvocationContext("cuo-cpo@0.4.1", TENANT)


class Keeper(logging.Handler):
    """Keeps records as a collector does, in every form in which one might."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Own(logging.LogRecord):
    """What an application makes of its records."""


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    install()
    yield
    logging.setLogRecordFactory(before)


@contextmanager
def kept(name: str) -> Iterator[list[logging.LogRecord]]:
    logger, keeper = logging.getLogger(name), Keeper()
    before = logger.level, logger.propagate
    logger.addHandler(keeper)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield keeper.records
    finally:
        logger.removeHandler(keeper)
        logger.level, logger.propagate = before


@contextmanager
def invocation(*, type_only: bool = False, values: Any = (SECRET,)) -> Iterator[ChildState]:
    """As it is while a body runs, and while Celery ends its task."""
    with one_task():
        state = ChildState(object(), CALLER, (values,), args_shown=SHOWN, type_only=type_only)
        state.result_shown = RESULT
        runs(state)
        yield state


@contextmanager
def running(task: Any) -> Iterator[None]:
    _task_stack.push(task)
    try:
        yield
    finally:
        _task_stack.pop()


@pytest.fixture
def plain() -> Any:
    app = Celery("unit", set_as_current=False)

    @app.task(name="test.plain", shared=False)  # type: ignore[untyped-decorator]
    def plain() -> None: ...

    return plain._get_current_object()


class Skill:
    """What Celery's stack has while a skill is traced."""

    def args_hash(self) -> str:
        return HASH


def forms(record: logging.LogRecord) -> str:
    """All that can be got out of a record."""
    line = logging.Formatter("%(message)s").format(record)
    document = json.dumps(vars(record), default=lambda part: f"{part!s} {part!r}")
    handler = logging.handlers.QueueHandler(queue.Queue())
    sent = pickle.dumps(handler.prepare(record))
    error = record.exc_info[1] if record.exc_info else None
    chain = f"{error!r} {error and (error.__cause__, error.__context__, error.args)}"
    return f"{line} {document} {sent!r} {record.exc_text} {chain}"


def said(
    name: str, log: Callable[[logging.Logger], None], secret: str = SECRET
) -> logging.LogRecord:
    """The one record that came of it, which shows nothing in whatever form."""
    with kept(name) as records:
        log(logging.getLogger(name))
    (record,) = records
    assert secret not in forms(record)
    return record


def failing(error: BaseException, cause: BaseException | None = None) -> Any:
    try:
        raise error from cause
    except type(error):
        return sys.exc_info()


def context(**parts: Any) -> dict[str, Any]:
    """What Celery fills into its templates, and passes as data."""
    return {"id": "id", "name": "test.echo", "args": f"('{SECRET}',)", "kwargs": "{}", **parts}


# --- what Celery says of a task -------------------------------------------------------------------


def test_a_success_shows_hashes() -> None:
    """In the place of the arguments and of the result, in the message and in data."""
    told = context(return_value=f"'{SECRET}'", runtime=0.1)
    with invocation():
        record = said(
            "celery.app.trace",
            lambda log: log.info(trace.LOG_SUCCESS, told, extra={"data": told}),
        )
    assert record.getMessage() == f"Task test.echo[id] succeeded in 0.1s: {RESULT}"
    assert record.data == record.args  # type: ignore[attr-defined]
    assert told["args"] == told["kwargs"] == SHOWN


def test_a_result_without_hash_is_withheld() -> None:
    """It is a secret whatever it is: no argument need be in it."""
    told = context(return_value="'salary 4000'", runtime=0.1)
    with invocation() as state:
        state.result_shown = None
        record = said(
            "celery.app.trace",
            lambda log: log.info(trace.LOG_SUCCESS, told, extra={"data": told}),
            "salary",
        )
    assert record.getMessage().endswith(f"s: {WITHHELD}")


def test_hashes_that_are_there_stay() -> None:
    """Celery shows the reprs of the message, which are hashes."""
    other = f"hmac:k1:{HASH}"
    told = context(args=other, kwargs=other, return_value="x", runtime=0.1)
    with invocation():
        said("celery.app.trace", lambda log: log.info(trace.LOG_SUCCESS, told))
    assert (told["args"], told["kwargs"]) == (other, other)


def test_a_failure_shows_masked_texts() -> None:
    """Message, data, exc_info, with the traceback that Celery has in a text."""
    info = failing(ValueError(f"no {SECRET}"), KeyError(SECRET))
    told = context(
        exc=f"ValueError('no {SECRET}')",
        traceback=f"Traceback\nValueError: no {SECRET}",
        description="raised unexpected",
    )
    with invocation():
        record = said(
            "celery.app.trace",
            lambda log: log.error(trace.LOG_FAILURE, told, exc_info=info, extra={"data": told}),
        )
    assert record.getMessage() == "Task test.echo[id] raised unexpected: ValueError('no ***')"
    assert record.exc_text is not None
    assert record.exc_text.endswith("ValueError: no ***")
    assert "KeyError: '***'" in record.exc_text
    assert told["traceback"] == "Traceback\nValueError: no ***"


def test_a_stand_in_is_left_as_it_is() -> None:
    """Whoever formats the record formats it as ever."""
    error = stand_in(failing(ValueError(f"no {SECRET}"))[1], (SECRET,))
    with invocation(), kept("celery.app.trace") as records:
        logging.getLogger("celery.app.trace").error("failed", exc_info=error)
    (record,) = records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert record.exc_text is None
    assert "ValueError: no ***" in logging.Formatter().format(record)
    assert SECRET not in forms(record)


def test_a_retry_shows_its_reason_masked() -> None:
    """Of Celery's tracer in the child, and of the worker's main process where they are one."""
    told = {"id": "id", "name": "test.echo", "exc": f"Retry in 3s: ValueError('{SECRET}')"}
    with invocation():
        record = said(
            "celery.app.trace", lambda log: log.info(trace.LOG_RETRY, told, extra={"data": told})
        )
        reason = f"Retry in 3s: {SECRET}"
        said(
            "celery.worker.request",
            lambda log: log.info("Task %s[%s] retry: %s", "test.echo", "id", reason),
        )
    assert record.getMessage() == "Task test.echo[id] retry: Retry in 3s: ValueError('***')"


def test_before_its_invocation_a_skills_arguments_are_withheld() -> None:
    """Refused, or before before_start: the task is known, its values are not."""
    told = context(return_value=f"'{SECRET}'", runtime=0.1)
    with running(Skill()):
        said(
            "celery.app.trace",
            lambda log: log.info(trace.LOG_SUCCESS, told, extra={"data": told}),
        )
    assert (told["args"], told["kwargs"], told["return_value"]) == (WITHHELD,) * 3


def test_an_error_of_the_tracer_outside_invocations_is_told_by_class() -> None:
    """Nobody knows whose values it quotes; its traceback has frames and class."""
    error = ValueError(SECRET)
    error.add_note(SECRET)
    with running(Skill()):
        record = said(
            "celery.app.trace",
            lambda log: log.error(
                "Task %s[%s] after_return handler raised: %r",
                "test.echo",
                "id",
                error,
                exc_info=failing(error, KeyError(SECRET)),
            ),
        )
    assert record.getMessage().endswith("raised: ValueError()")
    assert record.exc_info is not None
    assert "in failing" in logging.Formatter().format(record)


@pytest.mark.parametrize("name", ["celery.app.builtins", "celery.backends.redis"])
def test_a_chord_tells_of_another_invocation_by_class(name: str) -> None:
    """Inside an invocation, whose values are not the ones that the error quotes; and outside."""
    error = ExceptionWithTraceback(ValueError("salary 4000"), "salary 4000")

    def log(logger: logging.Logger) -> None:
        logger.error("Chord %r raised: %r", "g", error, exc_info=failing(ValueError("salary 4000")))

    with invocation():
        record = said(name, log, "salary")
    assert record.getMessage() == "Chord 'g' raised: ValueError()"
    assert said(name, log, "salary").getMessage() == "Chord 'g' raised: ValueError()"


@pytest.mark.parametrize(
    "name",
    [
        "celery.canvas",
        "celery.concurrency.thread",
        "celery.utils.dispatch.signal",
        "multiprocessing",
    ],
)
def test_others_that_speak_of_whichever_invocation(name: str) -> None:
    """With none running here."""
    record = said(name, lambda log: log.error("no: %r", ValueError(SECRET)))
    assert record.getMessage() == "no: ValueError()"


@pytest.mark.parametrize(
    "error",
    [
        AuditEmitFailed("start", "down"),
        OSError(111, "refused"),
        RedisConnectionError("refused"),
        NotRegistered("x"),
    ],
    ids=repr,
)
def test_errors_of_connections_keep_their_text(error: Exception) -> None:
    """Somebody must find out what is wrong; they never say a value."""
    with kept("celery.backends.redis") as records:
        logging.getLogger("celery.backends.redis").error("no: %r", error, exc_info=failing(error))
    assert records[0].getMessage() == f"no: {error!r}"
    assert records[0].exc_info is not None
    assert records[0].exc_info[1] is error


def test_an_internal_error_is_told_by_class() -> None:
    """A warning with the error's text and its causes', as Celery captures it."""
    text = f"Exception raised outside body: ValueError('{SECRET}'):\nTraceback {SECRET}"
    with kept("py.warnings") as records:
        logging.captureWarnings(True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn(RuntimeWarning(text), stacklevel=1)
                warnings.warn("another", stacklevel=1)
        finally:
            logging.captureWarnings(False)
    assert SECRET not in forms(records[0])
    assert (
        records[0]
        .getMessage()
        .endswith(f"RuntimeWarning: Exception raised outside body: ValueError: {WITHHELD}")
    )
    assert "UserWarning: another" in records[1].getMessage()


# --- Celery's dumps of messages -------------------------------------------------------------------


def test_the_pools_dump_is_withheld() -> None:
    """At DEBUG it has the whole request; what is called stays."""
    record = said(
        "celery.pool",
        lambda log: log.debug(
            "TaskPool: Apply %s (args:%s kwargs:%s)", "<function>", f"('{SECRET}')", f"{SECRET}"
        ),
    )
    assert record.getMessage() == "TaskPool: Apply <function> (args:withheld kwargs:withheld)"


HEADERS = {"id": "id", "task": "test.echo", "argsrepr": f"('{SECRET}',)", "x": SECRET}
BODY = f'[["{SECRET}"], {{}}, {{}}] (35b)'


def test_an_unknown_tasks_message_is_withheld() -> None:
    """Which task it is, from where, and how large, stays."""
    record = said(
        "celery.worker.consumer.consumer",
        lambda log: log.error(
            UNKNOWN_TASK_ERROR,
            NotRegistered("test.echo"),
            BODY,
            HEADERS,
            {"exchange": "", "routing_key": "skills"},
            exc_info=failing(NotRegistered("test.echo")),
        ),
    )
    message = record.getMessage()
    assert "'test.echo'" in message
    assert "withheld (35b)" in message
    assert "{'id': 'id', 'task': 'test.echo'}" in message
    assert "'routing_key': 'skills'" in message


def test_an_unknown_message_without_headers_is_withheld() -> None:
    """A foreign publisher may leave out anything."""
    record = said(
        "celery.worker.consumer.consumer",
        lambda log: log.error(UNKNOWN_TASK_ERROR, KeyError("task"), SECRET, None, None),
    )
    assert f"\n{WITHHELD}\n" in record.getMessage()


def test_an_invalid_tasks_message_is_withheld() -> None:
    """Its error is the host's or Celery's; the traceback's chain may quote the body."""
    record = said(
        "celery.worker.consumer.consumer",
        lambda log: log.error(
            INVALID_TASK_ERROR,
            "header 'eta' has no value",
            BODY,
            exc_info=failing(ValueError(SECRET), KeyError(SECRET)),
        ),
    )
    assert "header 'eta' has no value" in record.getMessage()
    assert "withheld (35b)" in record.getMessage()


def test_what_cannot_be_decoded_is_withheld() -> None:
    """The decoder's error quotes the document, and the headers have the reprs."""
    error = json.JSONDecodeError(SECRET, SECRET, 0)
    record = said(
        "celery.worker.consumer.consumer",
        lambda log: log.critical(
            MESSAGE_DECODE_ERROR,
            error,
            "application/json",
            "utf-8",
            str(HEADERS),
            BODY,
            exc_info=failing(error),
        ),
    )
    assert record.getMessage() == (
        "Can't decode message body: JSONDecodeError() [type:'application/json' encoding:'utf-8'"
        " headers:withheld]\n\nbody: withheld (35b)\n"
    )


def test_what_is_no_task_is_withheld() -> None:
    """Wrong destination: the report has body and headers."""
    record = said(
        "celery.worker.consumer.consumer", lambda log: log.warning(UNKNOWN_FORMAT, f"body {SECRET}")
    )
    assert record.getMessage().endswith(f"message body was: {WITHHELD}\n")


# --- what a body says -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["billing", "celery.task.mine", "root"])
def test_whatever_a_body_logs_is_masked(name: str) -> None:
    """Through any logger, in any way to format."""
    with invocation():
        assert said(name, lambda log: log.info("at %s", SECRET)).getMessage() == "at ***"
        assert said(name, lambda log: log.info(f"at {SECRET}")).getMessage() == "at ***"
        told = {"who": SECRET, "what": 5}
        assert said(name, lambda log: log.info("at %(who)s", told)).getMessage() == "at ***"
    assert told == {"who": SECRET, "what": 5}


def test_a_task_logger_is_masked() -> None:
    """Celery's own way to get one."""
    with invocation(), kept("skills.billing") as records:
        get_task_logger("skills.billing").warning("at %s", [SECRET])
    assert records[0].getMessage() == "at ['***']"


def test_arguments_of_a_message_that_shows_none_go() -> None:
    """A collector that keeps template and arguments would keep them."""
    with invocation():
        told = {"what": 5, "who": SECRET}
        record = said("billing", lambda log: log.info("at %(what)s", told))
        assert (record.getMessage(), record.args) == ("at 5", None)
        record = said("billing", lambda log: log.info("at %.3s", SECRET))
        assert (record.getMessage(), record.args) == ("at cus", None)


def test_a_mapping_of_the_bodys_own_is_not_touched() -> None:
    """Not even where its keys are Celery's words: the body goes on working with it."""
    told = {"args": [1], "kwargs": SECRET, "return_value": SECRET, "exc": SECRET}
    before = dict(told)
    with invocation():
        record = said("billing", lambda log: log.info("%(exc)s of %(args)s", told))
    assert told == before
    assert record.getMessage() == "*** of [1]"


def test_a_message_without_values_is_left_alone() -> None:
    """Template and arguments stay apart, as collectors that group by template need it."""
    with invocation(), kept("billing") as records:
        logging.getLogger("billing").info("at %s of %d", "noon", 5)
    assert (records[0].msg, records[0].args) == ("at %s of %d", ("noon", 5))


def test_an_exception_that_a_body_logs_is_masked() -> None:
    """With its causes and notes, as text and as an object."""
    error = ValueError(f"no {SECRET}")
    error.add_note(f"while at {SECRET}")
    with invocation():
        record = said(
            "billing", lambda log: log.error("x", exc_info=failing(error, KeyError(SECRET)))
        )
    assert record.exc_text is not None
    assert "KeyError: '***'" in record.exc_text
    assert record.exc_text.endswith("ValueError: no ***\nwhile at ***")
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == "ValueError('no ***')"
    assert logging.Formatter("%(message)s").format(record) == f"x\n{record.exc_text}"


def test_logger_exception_without_an_exception() -> None:
    """Nothing to mask."""
    with invocation(), kept("billing") as records:
        logging.getLogger("billing").exception("x")
    assert records[0].exc_info == (None, None, None)


def test_where_errors_have_no_text_a_body_logs_them_by_class() -> None:
    """Whatever is in it: a result's parts are secrets as well."""
    error = ValueError("salary 4000")
    with invocation(type_only=True):
        record = said(
            "billing", lambda log: log.error("no: %s", error, exc_info=failing(error)), "salary"
        )
        assert said("billing", lambda log: log.info("%r", error), "salary").msg == "%r"
    assert "in failing" in str(record.exc_text)
    assert str(record.exc_text).endswith("\nValueError")


def test_a_reject_of_a_body_keeps_its_class() -> None:
    """Celery logs it with its traceback."""
    info = failing(Reject(SECRET, requeue=True))
    with invocation():
        record = said("celery.app.trace", lambda log: log.warning("x", exc_info=info))
    assert type(record.exc_info[1]).__name__ == "Reject"  # type: ignore[index]


@pytest.mark.parametrize("args", [(SECRET, SECRET), (object(),)])
def test_a_record_that_cannot_be_formatted_says_so(args: tuple[Any, ...]) -> None:
    """Nobody knows what is in it, and logging would print it on stderr."""
    with invocation():
        record = said("billing", lambda log: log.info("at %d", *args, exc_info=failing(KeyError())))
    assert record.getMessage() == "withheld, for it could not be redacted: TypeError"
    assert record.args is record.exc_info is record.exc_text is None


def test_the_hosts_own_records_are_not_masked() -> None:
    """Alarms look for them to the letter, and a skill's name may be a value as well."""
    with invocation(values=["test.echo"]), kept("audit") as records:
        logging.getLogger("audit").critical("skill %s not dispatched", "test.echo")
    assert records[0].getMessage() == "skill test.echo not dispatched"


# --- everything else stays as it is ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["billing", "root", "celery.worker.strategy", "celery.pool", "kombu", "py.warnings"]
)
def test_outside_invocations_records_are_as_ever(name: str) -> None:
    """Field by field what Python's own factory makes."""
    info = failing(ValueError(SECRET), KeyError(SECRET))
    told = context(exc=SECRET, traceback=SECRET, return_value=SECRET)
    for args in ((SECRET,), (told,), ({},), ([info[1]],)):
        make = (name, 20, "file", 5, "at %s", args, info, "function", "stack")
        made, ever = logging.getLogRecordFactory()(*make), logging.LogRecord(*make)
        for record in (made, ever):
            for clock in ("created", "msecs", "relativeCreated"):
                vars(record).pop(clock)
        assert vars(made) == vars(ever)
    assert told == context(exc=SECRET, traceback=SECRET, return_value=SECRET)


def test_plain_tasks_stay_plain(plain: Any) -> None:
    """What Celery's tracer says of one has its arguments, its result and its error's text."""
    told = context(return_value=SECRET, runtime=0.1, exc=SECRET)
    before, error = dict(told), ValueError(SECRET)
    with running(plain), kept("celery.app.trace") as records:
        logging.getLogger("celery.app.trace").info(trace.LOG_SUCCESS, told, extra={"data": told})
        logging.getLogger("celery.app.trace").error("no: %r", error, exc_info=failing(error))
    assert told == before
    assert records[0].args is told
    assert records[1].args == (error,)
    assert records[1].exc_info is not None
    assert records[1].exc_info[1] is error


def test_without_an_invocation_nothing_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of everybody else cost no more than a few comparisons."""

    def never(*_: Any) -> str:
        pytest.fail("masked outside an invocation")

    monkeypatch.setattr(Masker, "mask", never)
    monkeypatch.setattr(redaction, "stand_in", never)
    for name in ("billing", "celery.worker.strategy", "audit"):
        with kept(name) as records:
            logging.getLogger(name).info("at %s", SECRET, exc_info=failing(ValueError(SECRET)))
        assert records[0].getMessage() == f"at {SECRET}"


# --- the factory ----------------------------------------------------------------------------------


def test_installing_twice_wraps_once() -> None:
    """Every invocation sees to it that it is there."""
    once = logging.getLogRecordFactory()
    install()
    assert logging.getLogRecordFactory() is once
    assert isinstance(once, Redaction)


def test_an_applications_own_factory_is_kept() -> None:
    """Its records are redacted, with what it adds."""

    logging.setLogRecordFactory(Own)
    install()
    with invocation():
        record = said("billing", lambda log: log.info("at %s", SECRET))
    assert isinstance(record, Own)
    assert record.getMessage() == "at ***"


def test_a_factory_that_came_later_is_wrapped_again() -> None:
    """An application that sets one after the host has begun does not switch redaction off."""
    logging.setLogRecordFactory(logging.LogRecord)
    install()
    with invocation():
        assert said("billing", lambda log: log.info(SECRET)).getMessage() == "***"
