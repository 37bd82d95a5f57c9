"""What happens to an invocation in the worker's main process.

The main process makes the request_id, and closes the invocations that nobody else can report: the
child was killed, or is about to be. It closes before it lets Celery go on, so that no result of
such an ending is seen before its row; bounded in time, because the worker's event loop waits; and
it never raises, because nobody in there would catch it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from celery.exceptions import InvalidTaskError, Terminated, TimeLimitExceeded
from celery.worker import state
from celery.worker.request import Request

from audit import metrics
from audit.context import (
    CONTEXT_HEADERS,
    TRACE_HEADER,
    TRACE_STATE_HEADER,
    InvocationContext,
    Trace,
    using,
)
from audit.errors import AuditMemoryError, InvocationError, SpoolError
from audit.invocation import new_request_id
from audit.masking import error_message
from audit.recorder import Kept
from audit.row import Ending, Reason, skill_invoked_completed, timestamp
from tasks.caller import REQUEST_ID_HEADER, is_skill
from tasks.headers import EMBEDDED, check_embed, unusable_header
from tasks.identity import identify
from tasks.proof import PROOF_HEADER, Verifying, is_unproven, names_a_caller, proof_of
from tasks.reprs import WITHHELD, as_sent, is_shown, of_skill
from tasks.runtime import runtime_of
from tasks.standin import unwrapped

logger: Final = logging.getLogger("audit")


class CarryingRequest(Verifying, Request):
    """One delivery of a plain task's message, whose context what it publishes may inherit.

    Workers that have ``audit_context_keys`` receive plain tasks with it: what they publish, and the
    skills they call, run as whom their message names, so that must be proven as well. A message
    that proves nothing is run, for plain tasks are anybody's, but it names nobody: not in its
    headers, and not in the callbacks and signatures it holds, which this worker would sign.

    Raises:
        InvalidTaskError: those do.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _verify(self)
        _name_nobody_unproven(self)


class DiscreetRequest(Verifying, Request):
    """One delivery of a message whose values nobody but the body gets to see.

    Raises:
        InvalidTaskError: the message has no form that Celery could use; it rejects such a message
            for good, where it would stumble over it otherwise, and end the worker.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
            _, keywords, embed = self._Request__payload
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidTaskError(f"no message of a task: {type(error).__name__}") from None
        if not isinstance(keywords, Mapping):
            raise InvalidTaskError("Task keyword arguments is not a mapping")
        check_embed(embed)
        if (name := unusable_header(self._request_dict)) is not None:
            raise InvalidTaskError(f"header {name!r} has no value that Celery could use")
        _verify(self)
        self._argsrepr = self._kwargsrepr = self._arguments_shown()
        self._request_dict.update(argsrepr=self._argsrepr, kwargsrepr=self._argsrepr)
        if not is_skill(self.task):
            _name_nobody_unproven(self)

    def info(self, safe: bool = False) -> Any:
        """Called for ``inspect active``, ``reserved``, ``scheduled``, ...: never the arguments."""
        return super().info(safe=True)

    def send_event(self, type: str, **fields: Any) -> None:
        """Called with what the worker tells the world of this task."""
        if "result" in fields and not is_shown(fields["result"]):
            fields["result"] = WITHHELD  # Celery read it back, when a child died after its success
        super().send_event(type, **fields)

    def _arguments_shown(self) -> str:
        """The hash that stands for the arguments; a foreign publisher sends them as they are."""
        if is_unproven(self._request_dict):
            return WITHHELD  # hashed with a tenant's key, it would tell a forger what hash is what
        runtime, key = runtime_of(self.app), None
        if runtime.settings.hash_keys:
            try:
                # Not the header itself, for a tenant can be spelled in many ways.
                key = runtime.hash_key(InvocationContext.from_headers(self._request_dict).tenant_id)
            except InvocationError:
                return WITHHELD  # nobody can tell whose key hides them
        sent = self._argsrepr
        if is_shown(sent, key):
            return str(sent)
        if not is_skill(self.task):
            return as_sent(self.args, self.kwargs, key)
        return of_skill(self.task, self.args, self.kwargs, key)


class SkillRequest(DiscreetRequest):
    """One delivery of one message.

    The request_id goes to the pool child in the request's headers, so that both processes know it,
    and always over what the message claims: an unknown header of a message is copied into its
    retries, and a retry is an invocation of its own.
    """

    _accepted: float | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        headers = self._request_dict
        headers[REQUEST_ID_HEADER] = self.request_id = new_request_id()
        if is_unproven(headers):
            self._empty()
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
            self._close(unwrapped(exc_info.exception))
        with self._on_behalf_of_the_caller():
            return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Called when a time limit struck; a hard one has gone through ``on_failure`` before."""
        if not soft:
            self._close(TimeLimitExceeded(timeout))
        with self._on_behalf_of_the_caller():
            return super().on_timeout(soft, timeout)

    # --- inside -------------------------------------------------------------------------------

    def _empty(self) -> None:
        """Leave nothing of a message that proves nothing but its refusal, and that at once.

        Its errbacks and links would be published by this worker, as whom the message names, and a
        retry of it would be signed.
        """
        # Each part by name, for what a body does not embed may stand in the headers.
        nothing: tuple[Any, ...] = ([], {}, dict.fromkeys(EMBEDDED))
        self._body = self._Request__payload = nothing
        self._content_type = self._content_encoding = None
        self._args, self._kwargs, _ = nothing
        self._eta = self._expires = None
        self.time_limits = (None, None)
        headers = self._request_dict
        for name in CONTEXT_HEADERS:
            headers.pop(name, None)
        headers.update(args=[], kwargs={}, eta=None, expires=None, timelimit=[None, None])
        headers.update(stamped_headers=None, stamps=None)  # options of whatever is published

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
            metrics.emit_failed("completed")
            text = row.to_bytes().decode()
            logger.critical(
                "an ending seen from outside is not on record: %s; the row: %s",
                problem,
                text,
                extra={"severity": "sev-1", "audit_row": text},
            )
            return
        if kept is Kept.MEMORY:
            metrics.closed_from_outside(row.payload)
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
        if is_unproven(self._request_dict):
            return None
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


def _verify(request: Request) -> None:
    """Leave what comes of verifying a message where the process that runs the body finds it."""
    headers, message = request._request_dict, request._message
    settings = runtime_of(request.app).settings
    proof = proof_of(message, headers, settings, as_sent=not request._decoded)
    if proof is None:
        headers.pop(PROOF_HEADER, None)
        return
    # Celery takes a header of this name for all that a message says to its retries.
    headers.pop("headers", None)
    headers[PROOF_HEADER] = proof


def _name_nobody_unproven(request: Request) -> None:
    """Let a message that proves nothing name nobody, wherever this worker would publish from it.

    Raises:
        InvalidTaskError: a callback or a signature in it does.
    """
    headers = request._request_dict
    if not is_unproven(headers):
        return
    for name in CONTEXT_HEADERS:
        headers.pop(name, None)
    embed = request._payload[2]
    check_embed(embed)
    if names_a_caller([embed, *headers.values()]):
        raise InvalidTaskError(
            "a signature in the message names a caller, and the message is not signed: its"
            " publisher needs a caller of its own, and a key (audit_context_keys)"
        )
