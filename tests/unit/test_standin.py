"""tasks/standin.py: an error in the place of another says the same, without what it was told."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.serialization import (
    get_pickleable_etype,
    get_pickleable_exception,
    get_pickled_exception,
)
from opentelemetry.sdk.trace import TracerProvider

from tasks.standin import StandIn, is_stand_in, mask_error, mask_info, stand_in, unwrapped

SECRET = "customer-4711"
VALUES = (SECRET,)
ROOT = Path(__file__).parents[2]


class OwnPanicError(BaseException):
    """A panic of a library's own."""


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


class TwoPartsError(Exception):
    """Cannot be made of one argument, so Celery and pickle have trouble with it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def nested_class() -> type[Exception]:
    class B(Exception):
        pass

    return B


def foreign_class() -> type[Exception]:
    return type("GoneError", (Exception,), {"__module__": "no.such.module"})


def caught(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is None:
            raise error
        raise error from cause
    except type(error) as found:
        return found


def einfo(error: BaseException, cause: BaseException | None = None) -> ExceptionInfo:
    try:
        if cause is None:
            raise error
        raise error from cause
    except type(error):
        return ExceptionInfo()


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def elsewhere(part: Any) -> Any:
    """What another process gets of it."""
    return pickle.loads(pickle.dumps(part))  # noqa: S301 - our own bytes


def shows(part: Any) -> str:
    """All that one can get out of an object by printing and pickling it."""
    return f"{part!s} {part!r} {pickle.dumps(part)!r} {getattr(part, '__notes__', '')}"


# --- as the other one prints ----------------------------------------------------------------------

CLASSES: list[Callable[[], type[BaseException]]] = [
    lambda: ValueError,
    lambda: OwnPanicError,
    nested_class,
    foreign_class,
]


@pytest.mark.parametrize("make", CLASSES)
def test_it_prints_as_the_other_one_masked(make: Callable[[], type[BaseException]]) -> None:
    """str, repr and the last line of its traceback; the frames are the same."""
    masked = caught(make()("cannot use ***"))
    found = stand_in(caught(make()(f"cannot use {SECRET}")), VALUES)
    assert str(found) == str(masked)
    assert repr(found).rpartition("(")[2] == repr(masked).rpartition("(")[2]
    assert printed(found).splitlines() == printed(masked).splitlines()


def test_its_repr_bears_the_name_of_the_class() -> None:
    """With the masked text, and empty where there is none, as Python's own."""
    assert repr(stand_in(ValueError(SECRET), VALUES)) == "ValueError('***')"
    assert repr(stand_in(ValueError(), VALUES)) == "ValueError()"
    assert repr(stand_in(nested_class()("x"), VALUES)) == "nested_class.<locals>.B('x')"


@pytest.mark.parametrize("make", CLASSES)
def test_a_span_records_it_as_the_other_one(make: Callable[[], type[BaseException]]) -> None:
    """OpenTelemetry's exception.type, message and stacktrace."""

    def event(error: BaseException) -> dict[str, Any]:
        with TracerProvider().get_tracer("unit").start_as_current_span("s") as span:
            span.record_exception(error)  # type: ignore[arg-type]
            (found,) = span.events  # type: ignore[attr-defined]
            return dict(found.attributes)

    found = event(stand_in(make()(f"cannot use {SECRET}"), VALUES))
    assert found == event(make()("cannot use ***"))


def test_here_it_is_one_of_the_others_class() -> None:
    """Celery asks isinstance(error, task.throws); the error itself is at hand for its caller."""
    error = KeyError(SECRET)
    found = stand_in(error, VALUES)
    assert isinstance(found, KeyError)
    assert isinstance(found, LookupError)
    assert not isinstance(found, ValueError)
    assert isinstance(found, StandIn)
    assert found.original is error
    assert found.__class__ is KeyError


def test_an_error_that_cannot_be_printed_is_told_by_its_class() -> None:
    """And nothing of what it raised instead."""
    found = stand_in(caught(SilentError()), VALUES)
    assert str(found) == "<unprintable>"
    assert repr(found) == "SilentError('<unprintable>')"
    assert SECRET not in printed(found)


def test_type_only_leaves_no_text() -> None:
    """Of a skill whose body is excluded."""
    found = stand_in(ValueError("anything"), (), type_only=True)
    assert (str(found), repr(found)) == ("", "ValueError()")


def test_one_is_enough() -> None:
    """A stand-in of a stand-in would lose the original."""
    found = stand_in(ValueError(SECRET), VALUES)
    assert is_stand_in(found)
    assert stand_in(found, ()) is found
    assert not is_stand_in(ValueError())
    assert not is_stand_in(None)


def test_a_group_is_told_as_one() -> None:
    """Its members and their texts stay out."""
    group = ExceptionGroup(f"both {SECRET}", [ValueError(SECRET), KeyError("other")])
    found = stand_in(caught(group), VALUES)
    assert str(found) == "both *** (2 sub-exceptions)"
    assert SECRET not in printed(found)
    assert "other" not in printed(found)


def test_causes_and_notes_stay_out() -> None:
    """They may quote the values of others."""
    error = caught(ValueError("outer"), KeyError(SECRET))
    error.add_note(f"while at {SECRET}")
    found = stand_in(error, ())
    assert found.__cause__ is None
    assert found.__context__ is None
    assert SECRET not in printed(found)


def test_a_large_argument_does_not_get_in() -> None:
    """10 MB of text in the error, and the same in the argument."""
    large = "0123456789abcdef-" * 600_000
    found = stand_in(ValueError(f"no: {large}"), (large,))
    assert str(found) == "no: ***"
    assert len(pickle.dumps(found)) < 1000


# --- to another process ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", CLASSES)
def test_it_pickles_without_anything_of_the_original(
    make: Callable[[], type[BaseException]],
) -> None:
    """A process that has none of its class prints it the same way."""
    error = caught(make()(f"cannot use {SECRET}"), KeyError("a cause"))
    error.add_note("a note")
    sent = pickle.dumps(found := stand_in(error, VALUES))
    assert not any(word in sent for word in (SECRET.encode(), b"a cause", b"a note"))
    back = elsewhere(found)
    assert (str(back), repr(back)) == (str(found), repr(found))
    assert back.original is back.__cause__ is back.__context__ is None
    assert not hasattr(back, "__notes__")
    assert type(back).__name__ == make().__qualname__
    assert type(back).__module__ == make().__module__


def test_it_arrives_where_its_class_is_unknown() -> None:
    """In a fresh interpreter that never saw the module."""
    sent = pickle.dumps(stand_in(foreign_class()(f"cannot use {SECRET}"), VALUES))
    code = f"import pickle; print(repr(pickle.loads({sent!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "GoneError('cannot use ***')"


def test_pickling_twice_changes_nothing() -> None:
    """It goes through more than one pipe."""
    found = stand_in(nested_class()(SECRET), VALUES)
    once = elsewhere(found)
    assert pickle.dumps(elsewhere(once)) == pickle.dumps(once)


@pytest.mark.parametrize("make", CLASSES)
def test_celery_carries_it(make: Callable[[], type[BaseException]]) -> None:
    """Its own wrapping and unwrapping leave it as it is, in billiard's ExceptionInfo too."""
    found = stand_in(caught(make()(f"cannot use {SECRET}")), VALUES)
    assert get_pickled_exception(get_pickleable_exception(found)) is found
    info = einfo(found)
    info.type = get_pickleable_etype(info.type)
    info.exception = unwrapped(info.exception)
    back = elsewhere(info)
    assert repr(back.exception) == repr(found)
    assert SECRET not in shows(back)
    assert str(back.exception) == "cannot use ***"


def test_the_json_result_backend_takes_a_retry_of_one() -> None:
    """What a publisher reads of a retried task has its class and its text."""
    backend = Celery("unit", backend="cache+memory://", set_as_current=False).backend
    retry = Retry(exc=stand_in(ValueError(f"cannot use {SECRET}"), VALUES), when=3)
    assert repr(retry.exc) == "ValueError('cannot use ***')"
    backend.store_result("id", retry.exc, "RETRY")
    raw = backend.get(backend.get_key_for_task("id"))
    assert SECRET not in str(raw)
    assert json.loads(raw)["result"]["exc_type"] == "ValueError"
    found = backend.get_task_meta("id")["result"]
    assert isinstance(found, ValueError)
    assert str(found) == "cannot use ***"


# --- errors that stay what they are ---------------------------------------------------------------


def test_a_retry_stays_one() -> None:
    """Message, error, and the error's text are masked; the time is Celery's."""
    error = Retry(f"again {SECRET}", exc=ValueError(f"no {SECRET}"), when=7)
    mask_error(error, VALUES)
    assert (error.message, error.when) == ("again ***", 7)
    assert str(error) == "again ***"
    assert is_stand_in(error.exc)
    assert error.excs == "ValueError('no ***')"
    assert error.args == (error, error.exc, 7)
    assert SECRET not in shows(error)


def test_a_retry_without_message_says_its_error() -> None:
    """As ``celery.retry.reason`` and Celery's log show it."""
    error = Retry(exc=ValueError(f"no {SECRET}"), when=7)
    mask_error(error, VALUES)
    assert str(error) == "Retry in 7s: ValueError('no ***')"


def test_a_retry_with_a_text_for_an_error() -> None:
    """Celery keeps it as a text."""
    error = Retry(exc=f"no {SECRET}", when=7)
    mask_error(error, VALUES)
    assert (error.exc, error.excs) == (None, "no ***")
    assert SECRET not in shows(error)


def test_a_retry_without_anything() -> None:
    """Nothing is made up."""
    error = Retry(when=7)
    mask_error(error, VALUES)
    assert (error.message, error.exc, error.excs) == (None, None, None)
    assert str(error) == "Retry in 7s"


@pytest.mark.parametrize("requeue", [True, False])
def test_a_reject_keeps_what_the_broker_is_told(requeue: bool) -> None:
    """Its reason is masked, text or error or anything."""
    reasons = [(f"no {SECRET}", "no ***"), ([SECRET], "['***']"), (None, None), (True, True)]
    for reason, told in reasons:
        error = Reject(reason, requeue=requeue)
        mask_error(error, VALUES)
        assert (error.reason, error.requeue, error.args) == (told, requeue, (told, requeue))
    error = Reject(ValueError(SECRET), requeue=requeue)
    mask_error(error, VALUES)
    assert (repr(error.reason), error.requeue) == ("ValueError('***')", requeue)
    assert SECRET not in shows(error)
    error = Reject(True)
    mask_error(error, ("True",), type_only=True)
    assert error.reason is True


def test_an_ignore_says_nothing_of_values() -> None:
    """Its class is all that Celery looks at."""
    error = Ignore(f"no {SECRET}")
    mask_error(error, VALUES)
    assert (type(error), error.args) == (Ignore, ("no ***",))


@pytest.mark.parametrize(
    ("code", "told"), [(471100, 471100), (f"no {SECRET}", "no ***"), (None, None)]
)
def test_an_exit_keeps_its_status(code: Any, told: Any) -> None:
    """A number is what the process ends with; a text is printed."""
    error = SystemExit(code)
    mask_error(error, (SECRET, 471100))
    assert (error.code, error.args) == (told, (told,))


def test_what_ends_a_process_is_masked_in_all_its_parts() -> None:
    """Texts, errors, and whatever prints a value; the rest is as it was."""
    part = object()
    for error in (
        KeyboardInterrupt(SECRET, 5, part, [SECRET], None, ValueError(SECRET)),
        OwnPanicError(SECRET, 5, part, [SECRET], None, ValueError(SECRET)),
    ):
        mask_error(error, VALUES)
        assert error.args[:5] == ("***", 5, part, "['***']", None)
        assert repr(error.args[5]) == "ValueError('***')"


def test_type_only_leaves_no_text_anywhere() -> None:
    """A number is a value as well."""
    error = Retry("again", exc=ValueError("no"), when=7)
    mask_error(error, (), type_only=True)
    assert (error.message, str(error.exc), error.excs) == ("", "", "ValueError()")
    reject = Reject("no", requeue=True)
    mask_error(reject, (), type_only=True)
    assert reject.args == ("", True)
    ignore = Ignore("no", 5)
    mask_error(ignore, (), type_only=True)
    assert ignore.args == ("", "")
    leave = SystemExit("no")
    mask_error(leave, (), type_only=True)
    assert leave.args == ("",)


def test_neither_causes_nor_notes_stay() -> None:
    """They print with the error."""
    error = caught(Ignore("x"), KeyError(SECRET))
    error.add_note(SECRET)
    mask_error(error, ())
    assert error.__cause__ is error.__context__ is None
    assert SECRET not in printed(error)


# --- what Celery passes on ------------------------------------------------------------------------


def test_a_chain_of_errors_leaves_no_text() -> None:
    """``raise X from Y`` prints both, in the traceback of the failure."""
    info = einfo(ValueError(f"no {SECRET}"), KeyError(f"cause {SECRET}"))
    assert SECRET in info.traceback
    mask_info(info, VALUES)
    assert SECRET not in info.traceback
    assert "KeyError: 'cause ***'" in info.traceback
    assert info.traceback.endswith("ValueError: no ***\n")
    assert is_stand_in(info.exception)
    assert SECRET not in shows(info.exception) + "".join(map(str, info.exc_info))
    assert SECRET not in printed(info.exception)
    assert SECRET not in repr(info.exception.args)


def test_notes_are_masked_in_a_traceback() -> None:
    """add_note is made for values at hand."""
    error = ValueError("no")
    error.add_note(f"while at {SECRET}")
    info = einfo(error)
    mask_info(info, VALUES)
    assert "while at ***" in info.traceback
    assert SECRET not in info.traceback


def test_a_traceback_of_the_type_alone() -> None:
    """Frames and class, no text of any link of the chain and no note."""
    error = ValueError("no")
    error.add_note("a note")
    info = einfo(error, KeyError("a cause"))
    mask_info(info, (), type_only=True)
    assert info.traceback.startswith('  File "')
    assert "in einfo" in info.traceback
    assert info.traceback.endswith("\nValueError")
    assert not any(word in info.traceback for word in ("ValueError: no", "a note", "a cause"))
    assert str(info.exception) == ""


@pytest.mark.parametrize(
    "error", [Retry(SECRET, exc=ValueError(SECRET)), Reject(SECRET), Ignore(SECRET)], ids=repr
)
def test_what_celery_tells_apart_keeps_its_class(error: Exception) -> None:
    """A worker's main process retries, rejects and ignores by class."""
    info = einfo(error)
    mask_info(info, VALUES)
    assert info.exception is error
    assert SECRET not in info.traceback + shows(info.exception)


def test_masking_once_is_enough() -> None:
    """A hook of an application's own may run after ours, and the tracer after both."""
    info = einfo(ValueError(SECRET))
    mask_info(info, VALUES)
    before = info.exception, info.traceback
    mask_info(info, (), type_only=True)
    assert (info.exception, info.traceback) == before


class Telling(BaseException):
    """Prints what it was given, whatever becomes of its arguments."""

    def __init__(self, detail: str) -> None:
        super().__init__("nothing")
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


def test_a_panic_stays_a_panic() -> None:
    """What ends a process must not turn into an error that somebody catches, here or over there."""
    found = stand_in(Telling(f"no {SECRET}"), VALUES)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301
    for panic in (found, again):
        assert not issubclass(type(panic), Exception)
        assert (type(panic).__name__, str(panic)) == ("Telling", "no ***")
    assert isinstance(found, Telling)
