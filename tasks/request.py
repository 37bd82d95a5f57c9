"""What happens to an invocation in the worker's main process.

The main process makes the request_id, and closes the invocations that nobody else can report: the
child was killed, or is about to be. It closes before it lets Celery go on, so that no result of
such an ending is seen before its row; bounded in time, because the worker's event loop waits; and
it never raises, because nobody in there would catch it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import InvalidTaskError, Terminated, TimeLimitExceeded
from celery.worker import state
from celery.worker.request import Request

from audit import metrics
from audit.context import TRACE_HEADER, TRACE_STATE_HEADER, InvocationContext, Trace, using
from audit.errors import AuditMemoryError, InvocationError, SpoolError
from audit.invocation import new_request_id
from audit.masking import error_message
from audit.recorder import Kept
from audit.row import Ending, Reason, skill_invoked_completed, timestamp
from tasks.caller import REQUEST_ID_HEADER
from tasks.headers import unusable_header
from tasks.identity import identify
from tasks.runtime import runtime_of

logger: Final = logging.getLogger("audit")


class SkillRequest(Request):
    """One delivery of one message.

    The request_id goes to the pool child in the request's headers, so that both processes know it,
    and always over what the message claims: an unknown header of a message is copied into its
    retries, and a retry is an invocation of its own.

    Raises:
        InvalidTaskError: a header has no value that Celery could use; it rejects such a message
            for good.
    """

    _accepted: float | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        headers = self._request_dict
        if (name := unusable_header(headers)) is not None:
            raise InvalidTaskError(f"header {name!r} has no value that Celery could use")
        headers[REQUEST_ID_HEADER] = self.request_id = new_request_id()
        if Trace.parse(headers.get(TRACE_HEADER)) is None:
            # Made here and not in the child: rows of either process must agree.
            headers[TRACE_HEADER] = Trace.fresh().header()
            headers.pop(TRACE_STATE_HEADER, None)  # of a trace that nobody could read

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Called when a pool child took the message."""
        self._accepted = time.monotonic()
        super().on_accepted(pid, time_accepted)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """Called when the child reported a failure, or when it is gone."""
        if not return_ok:
            self._close(_unwrapped(exc_info.exception))
        with self._on_behalf_of_the_caller():
            return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Called when a time limit struck; a hard one has gone through ``on_failure`` before."""
        if not soft:
            self._close(TimeLimitExceeded(timeout))
        with self._on_behalf_of_the_caller():
            return super().on_timeout(soft, timeout)

    # --- inside -------------------------------------------------------------------------------

    def _close(self, error: BaseException) -> None:
        """Put on record what was seen from outside; whoever closed before stays first."""
        caller = self._caller()
        if caller is None:
            return  # the child refuses such a message, so nothing was started
        runtime = runtime_of(self.app)
        identity = identify(self.task, self._request_dict, caller, runtime.worker_id)
        ending = Ending(reason=self._reason(error), error_message=error_message(error, ()))
        row = skill_invoked_completed(
            identity,
            ending,
            self._duration_ms(),
            ts=timestamp(datetime.now(UTC)),
            duration="upper_bound",
        )
        try:
            kept = runtime.outside.settle(row)
        except (AuditMemoryError, SpoolError) as problem:
            text = row.to_bytes().decode()
            logger.critical(
                "an ending seen from outside is not on record: %s; the row: %s",
                problem,
                text,
                extra={"severity": "sev-1", "audit_row": text},
            )
            return
        if kept is Kept.SPOOL:
            metrics.emit_failed("completed")
            logger.critical(
                "an ending seen from outside waits in the spool: request_id %s",
                row.request_id,
                extra={"severity": "sev-1"},
            )

    def _reason(self, error: BaseException) -> Reason:
        if isinstance(error, TimeLimitExceeded):
            return Reason.HARD_TIME_LIMIT
        if state.should_terminate or self._already_cancelled:
            return Reason.SHUTDOWN
        if isinstance(error, Terminated) or self._already_revoked:
            return Reason.REVOKED
        return Reason.WORKER_LOST

    def _duration_ms(self) -> int:
        """From the moment the pool took the message, as nobody is left who knows better."""
        if self._accepted is None:
            return 0
        return max(0, round((time.monotonic() - self._accepted) * 1000))

    def _caller(self) -> InvocationContext | None:
        try:
            return InvocationContext.from_headers(self._request_dict)
        except InvocationError:
            return None

    @contextmanager
    def _on_behalf_of_the_caller(self) -> Iterator[None]:
        """Errbacks of a killed skill are published from here."""
        caller = self._caller()
        with using(caller and caller.published_by(self.request_id)):
            yield


def _unwrapped(error: BaseException) -> BaseException:
    return error.exc if isinstance(error, ExceptionWithTraceback) else error
