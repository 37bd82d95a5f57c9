"""Which exception leaves the body for which ending: the part of the endings table a child sees."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Any, Final

from billiard.common import terminate_handler_fired
from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler
from celery.exceptions import (
    Ignore,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    WorkerShutdown,
    WorkerTerminate,
)
from celery.worker import state

from audit.masking import Masker, error_message
from audit.row import Ending, Reason

#: The first match decides, so the special ones stand before the general ones.
REASONS: Final[tuple[tuple[type[BaseException], Reason], ...]] = (
    (SoftTimeLimitExceeded, Reason.SOFT_TIME_LIMIT),
    (Retry, Reason.RETRIED),
    (Ignore, Reason.IGNORED),
    (Reject, Reason.REJECTED),
    (MemoryError, Reason.BASE_EXCEPTION),
    (Exception, Reason.RAISED),
    (BaseException, Reason.BASE_EXCEPTION),
)


def ending_of(
    error: BaseException,
    values: Iterable[object] | Masker,
    *,
    type_only: bool = False,
    reason: Reason | None = None,
) -> Ending:
    """The ending of a body that ``error`` left.

    Args:
        error: what left the body.
        values: the invocation's arguments, masked wherever the error's text repeats them.
        type_only: keep the error's type alone.
        reason: the reason where the caller knows it better than the type says.
    """
    reason = reason or reason_of(error)
    if reason is Reason.IGNORED:
        return Ending(reason=reason)
    return Ending(reason=reason, error_message=error_message(error, values, type_only=type_only))


#: How gevent's pool ends a body; known by name, for gevent need not be there.
_IN_GREENLETS: Final = {
    "greenlet.GreenletExit": Reason.TERMINATED,
    "gevent.timeout.Timeout": Reason.HARD_TIME_LIMIT,
}


def reason_of(error: BaseException) -> Reason:
    """The reason that an exception which left the body stands for.

    A signal that ends this process arrives in the body as SystemExit, and a shutdown in a solo
    worker's body as whatever Celery raises there: not the body's doing, either of them.
    """
    if isinstance(error, SystemExit) and terminate_handler_fired():
        return Reason.TERMINATED
    if (named := _IN_GREENLETS.get(f"{type(error).__module__}.{type(error).__name__}")) is not None:
        return named
    if isinstance(error, WorkerShutdown | WorkerTerminate) or _stopped_under_it(error):
        return Reason.SHUTDOWN
    return next(found for kind, found in REASONS if isinstance(error, kind))


def _stopped_under_it(error: BaseException) -> bool:
    terminating = state.should_terminate is not None and state.should_terminate is not False
    return terminating and isinstance(error, NotImplementedError | SystemExit)


class SoftLimitWatch:
    """Counts the soft time limits that struck this process.

    A body may swallow ``SoftTimeLimitExceeded`` and return; comparing elapsed time with the limit
    cannot tell that from a body that just made it. So billiard's signal handler, once per process,
    is wrapped by one that counts and then does the same.
    """

    def __init__(self) -> None:
        self.struck = 0
        self._watched_pid: int | None = None

    def watch(self) -> int:
        """Begin to count in this process, where there is something to count; the count so far."""
        if self._watched_pid != os.getpid():
            self._watched_pid = os.getpid()
            self._wrap()
        return self.struck

    def _wrap(self) -> None:
        if SIG_SOFT_TIMEOUT is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(SIG_SOFT_TIMEOUT) is soft_timeout_sighandler:
            signal.signal(SIG_SOFT_TIMEOUT, self._count)

    def _count(self, signum: int, frame: Any) -> None:
        self.struck += 1
        soft_timeout_sighandler(signum, frame)


soft_limits: Final = SoftLimitWatch()
