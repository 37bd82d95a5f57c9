"""Log records without arguments and results, whoever writes them.

Celery repeats what went through a skill in many of its log records, in the message, in ``args``, in
``exc_info`` and in an extra called ``data``; so does a body that logs what it works on. The record
factory that :func:`install` puts before the one in force changes records when they are made, so no
handler, formatter or collector of records gets to see more:

* inside an invocation every record of any logger is masked with that invocation's values, extras
  too, and the place of arguments and result shows their hashes;
* Celery's dumps of whole messages are withheld, and so are texts of errors where nobody can tell
  whose values they quote (another invocation's, in a chord); the error's class stays.

Threads that a body starts by itself, without its context, log as ever. For development,
``audit_redact_logs = False`` leaves logs alone.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery._state import get_current_task
from celery.app.trace import LOG_SUCCESS
from celery.exceptions import NotRegistered
from celery.worker.consumer.consumer import (
    INVALID_TASK_ERROR,
    MESSAGE_DECODE_ERROR,
    UNKNOWN_FORMAT,
    UNKNOWN_TASK_ERROR,
)
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from audit.errors import AuditError
from audit.masking import Masker
from tasks.caller import ChildState, is_discreet, is_skill, running
from tasks.extras import Extras
from tasks.reprs import WITHHELD, is_shown
from tasks.standin import is_stand_in, stand_in, unwrapped

#: Errors whose texts tell of connections and processes, never of what went through a skill.
TELLING: Final = (
    AuditError,
    NotRegistered,
    OSError,
    OperationalError,
    RedisError,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)

#: The host's own logger, which never says a value; alarms look for what it says to the letter.
_OWN: Final = "audit"

#: Loggers that make a mapping for each record; one of an application's own must stay as it is.
_CELERYS: Final = "celery."

#: Loggers that speak of errors of whichever invocation, with none running here.
_OF_WHICHEVER: Final = (
    "celery.app.builtins",
    "celery.app.trace",
    "celery.backends",
    "celery.canvas",
    "celery.concurrency",
    "celery.utils.dispatch",
    "multiprocessing",
)

#: Among them, those that speak of another invocation while one runs here.
_OF_ANOTHER: Final = ("celery.app.builtins", "celery.backends", "celery.utils.dispatch")

#: Headers of a message that is of no use, which say nothing of its arguments.
_TOLD_HEADERS: Final = frozenset(
    {"id", "task", "lang", "origin", "root_id", "parent_id", "retries", "eta", "expires"}
)
_SIZE: Final = re.compile(r"\(\d+b\)$")
_INTERNAL_ERROR: Final = re.compile(r"Exception raised outside body: \w*")
_POOL_APPLY: Final = "TaskPool: Apply %s (args:%s kwargs:%s)"


def install() -> None:
    """Redact every log record of this process from now on; once is enough."""
    current = logging.getLogRecordFactory()
    if not isinstance(current, Redaction):
        logging.setLogRecordFactory(Redaction(current))


class Redaction:
    """The record factory: makes a record as ``factory`` does, and redacts it."""

    def __init__(self, factory: Callable[..., logging.LogRecord]) -> None:
        self._factory = factory

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._factory(*args, **kwargs)
        try:
            _redact(record)
        except Exception as error:
            # Whatever went wrong, what is in there may be a secret.
            record.msg = f"withheld, for it could not be redacted: {type(error).__qualname__}"
            record.args = record.exc_info = record.exc_text = None
        return record


def _redact(record: logging.LogRecord) -> None:
    state = running()
    withhold = _DUMPS.get(str(record.msg))
    if withhold is not None:
        withhold(record)
    if isinstance(record.args, dict) and record.name.startswith(_CELERYS):
        _show_hashes(record.args, state)
    if record.name == "py.warnings" and state is None:
        _withhold_internal_error(record)
    if record.name.startswith(_OF_ANOTHER if state is not None else _OF_WHICHEVER):
        _withhold_texts(record)
    if state is not None and record.name != _OWN and record.msg != LOG_SUCCESS:
        _mask(record, state)
        record.__dict__ = Extras(record.__dict__, state.values)


def _mask(record: logging.LogRecord, state: ChildState) -> None:
    """Take the running invocation's values out of a record.

    Not out of the one that every success writes: nothing is left in it but hashes.
    """
    values = state.values
    if state.type_only and isinstance(record.args, tuple):
        record.args = tuple(map(_without_text, record.args))
    message = record.getMessage()
    masked = values.mask(message)
    if masked != message or _shows(record.args, values):
        record.msg, record.args = masked, None
    error = record.exc_info[1] if record.exc_info else None
    if record.exc_info and error is not None and not is_stand_in(unwrapped(error)):
        if not state.type_only:
            told = "".join(traceback.format_exception(*record.exc_info))
            record.exc_text = values.mask(told).rstrip("\n")
        _replace_error(record, stand_in(unwrapped(error), values, type_only=state.type_only))


def _shows(args: Any, values: Masker) -> bool:
    """Whether a collector that keeps the arguments of a message would keep a value."""
    told = repr(args) if args else ""
    return values.mask(told) != told


def _show_hashes(context: dict[Any, Any], state: ChildState | None) -> None:
    """Put hashes into what Celery says of a skill; the same object is the record's ``data``."""
    task = get_current_task()
    if not (state or is_discreet(task)):
        return
    for name in ("args", "kwargs"):
        if name in context and not is_shown(context[name]):
            context[name] = state.args_shown if state else WITHHELD
    if "return_value" in context:
        context["return_value"] = (state and state.result_shown) or WITHHELD
    for name in ("exc", "traceback"):
        if isinstance(context.get(name), str):
            if state is not None:
                context[name] = state.values.mask(context[name])
            elif not is_skill(task):  # a skill's own have been masked
                context[name] = WITHHELD


def _withhold_texts(record: logging.LogRecord) -> None:
    """Leave of errors that may quote anybody's values their class."""
    if _says_a_plain_task(record):
        return
    if isinstance(record.args, tuple):
        record.args = tuple(map(_class_alone, record.args))
    if record.exc_info and record.exc_info[1] is not None:
        error = _class_alone(record.exc_info[1])
        if error is not record.exc_info[1]:
            _replace_error(record, error)


def _says_a_plain_task(record: logging.LogRecord) -> bool:
    """Plain tasks stay plain: what Celery's tracer says of one is none of ours."""
    task = get_current_task()
    return record.name == "celery.app.trace" and task is not None and not is_discreet(task)


def _withhold_internal_error(record: logging.LogRecord) -> None:
    """Celery warns of an error outside a body with its text, its causes and their texts."""
    message = record.getMessage()
    found = _INTERNAL_ERROR.search(message)
    if found is not None:
        record.msg, record.args = f"{message[: found.end()]}: {WITHHELD}", None


def _without_text(part: Any) -> Any:
    return stand_in(part, (), type_only=True) if isinstance(part, BaseException) else part


def _class_alone(part: Any) -> Any:
    error = unwrapped(part)
    if not isinstance(error, BaseException) or is_stand_in(error) or isinstance(error, TELLING):
        return part
    return stand_in(error, (), type_only=True)


def _replace_error(record: logging.LogRecord, error: BaseException) -> None:
    trace = record.exc_info[2] if record.exc_info else None
    record.exc_info = (type(error), error, trace)


# Celery's dumps of messages.


def _arguments(record: logging.LogRecord) -> tuple[Any, ...]:
    return record.args if isinstance(record.args, tuple) else (record.args,)


def _withhold_apply(record: logging.LogRecord) -> None:
    target, *_ = _arguments(record)
    record.args = (target, WITHHELD, WITHHELD)


def _withhold_report(record: logging.LogRecord) -> None:
    record.args = (WITHHELD,)


def _withhold_unknown_task(record: logging.LogRecord) -> None:
    error, body, headers, delivery = _arguments(record)
    told = {k: v for k, v in dict(headers or {}).items() if k in _TOLD_HEADERS}
    record.args = (error, _size(body), told, delivery)


def _withhold_invalid_task(record: logging.LogRecord) -> None:
    error, body = _arguments(record)
    record.args = (error, _size(body))
    _drop_error(record)


def _withhold_undecodable(record: logging.LogRecord) -> None:
    error, kind, encoding, _, body = _arguments(record)
    record.args = (_class_alone(error), kind, encoding, WITHHELD, _size(body))
    _drop_error(record)


def _drop_error(record: logging.LogRecord) -> None:
    """The traceback of a decoder quotes what it could not decode."""
    if record.exc_info and record.exc_info[1] is not None:
        _replace_error(record, stand_in(unwrapped(record.exc_info[1]), (), type_only=True))


def _size(dumped: object) -> str:
    found = _SIZE.search(str(dumped))
    return f"{WITHHELD} {found[0]}" if found else WITHHELD


_DUMPS: Final[Mapping[str, Callable[[logging.LogRecord], None]]] = {
    _POOL_APPLY: _withhold_apply,
    UNKNOWN_FORMAT: _withhold_report,
    UNKNOWN_TASK_ERROR: _withhold_unknown_task,
    INVALID_TASK_ERROR: _withhold_invalid_task,
    MESSAGE_DECODE_ERROR: _withhold_undecodable,
}
