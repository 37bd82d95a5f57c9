"""An error in the place of another, that says the same without what it was told.

Celery hands the error of a failed task to its log, its events, the result of ``inspect`` and, as
``einfo``, to every receiver of its signals, OpenTelemetry's among them. What they get of a skill's
error is a stand-in: it has the other one's class name and masked text, and neither its arguments
nor its causes. The result backend gets the error itself, for the caller; so do receivers in the
process that ran the body, beside ``einfo``, as they get the arguments.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import Reject, Retry, TaskPredicate

from audit.masking import Masker, error_text


class Prints:
    """Prints as another error would, masked.

    In the process where that one was raised, ``isinstance`` takes it for one of the same class
    (Celery asks so for a task's ``throws``), and :attr:`original` is the error itself. Neither
    travels to another process.
    """

    args: tuple[Any, ...]
    original: BaseException | None = None

    #: Whoever formats what ``isinstance`` takes for a group asks for its members: none are told.
    exceptions: tuple[BaseException, ...] = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self) if self.original is None else type(self.original)

    def __str__(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:
        text = str(self)
        return f"{type(self).__qualname__}({text!r})" if text else f"{type(self).__qualname__}()"

    def __reduce__(self) -> Any:
        kind = type(self)
        panic = not issubclass(kind, Exception)
        return _revived, (kind.__module__, kind.__qualname__, str(self), panic)


class StandIn(Prints, Exception):
    """In the place of an error."""


class PanicStandIn(Prints, BaseException):
    """In the place of what is no :class:`Exception`, and must go on as such."""


def stand_in(
    error: BaseException, values: Iterable[object] | Masker, *, type_only: bool = False
) -> BaseException:
    """The stand-in of ``error``; one that is a stand-in already stays.

    Args:
        error: what was raised.
        values: the arguments that its text must not show.
        type_only: leave out the text altogether.
    """
    if is_stand_in(error):
        return error
    kind = type(error)
    text = error_text(error, values, type_only=type_only)
    panic = not issubclass(kind, Exception)
    found: BaseException = _revived(str(kind.__module__), kind.__qualname__, text, panic)
    found.original = error  # type: ignore[attr-defined]
    return found.with_traceback(error.__traceback__)


def is_stand_in(error: object) -> bool:
    return issubclass(type(error), Prints)


def unwrapped(error: Any) -> Any:
    """The error that billiard has wrapped together with its traceback."""
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def mask_info(
    info: ExceptionInfo, values: Iterable[object] | Masker, *, type_only: bool = False
) -> None:
    """Mask what Celery passes on of a failure, in place."""
    error = unwrapped(info.exception)
    if is_stand_in(error):
        return
    values = values if isinstance(values, Masker) else Masker(list(values))
    if isinstance(error, TaskPredicate | MemoryError):  # the main process asks for their class
        mask_error(error, values, type_only=type_only)
        info.exception = error
    else:
        info.exception = stand_in(error, values, type_only=type_only)
    if type_only:
        frames = "".join(traceback.format_tb(info.tb)) if info.tb is not None else ""
        info.traceback = f"{frames}{type(info.exception).__qualname__}"
    else:
        info.traceback = values.mask(info.traceback or "")


def mask_error(
    error: BaseException, values: Iterable[object] | Masker, *, type_only: bool = False
) -> None:
    """Mask in place an error that must stay what it is: Celery's own, or what ends a process."""
    values = values if isinstance(values, Masker) else Masker(list(values))

    def told(part: Any) -> Any:
        if part is None or isinstance(part, bool):
            return part
        if isinstance(part, BaseException):
            return stand_in(part, values, type_only=type_only)
        text = part if isinstance(part, str) else repr(part)
        masked = "" if type_only else values.mask(text)
        return part if masked == text else masked

    if isinstance(error, Retry):
        error.message = told(error.message)
        error.exc = told(error.exc)
        error.excs = told(error.excs) if error.exc is None else repr(error.exc)
        error.args = (error, error.exc, error.when)
    elif isinstance(error, Reject):
        error.reason = told(error.reason)
        error.args = (error.reason, error.requeue)
    elif isinstance(error, SystemExit):
        error.code = error.code if isinstance(error.code, int) else told(error.code)
        error.args = (error.code,)
    else:
        error.args = tuple(map(told, error.args))
    error.__cause__ = error.__context__ = None
    vars(error).pop("__notes__", None)


def _revived(module: str, qualname: str, text: str, panic: bool) -> Any:
    return _class(module, qualname, panic)(text)


@lru_cache(maxsize=1024)
def _class(module: str, qualname: str, panic: bool) -> Any:
    """A class that prints as another; told by name, for it may not exist in this process."""
    base = PanicStandIn if panic else StandIn
    return type(qualname, (base,), {"__module__": module, "__qualname__": qualname})
