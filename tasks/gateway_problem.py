"""What the gateway answers when it does not give what was asked for: RFC 9457, one shape.

Every such answer is ``application/problem+json`` with ``type``, ``title``, ``status``, ``detail``
and ``fault``, a word of :class:`Fault` that programs go by. A detail says what to mend and names
places; it never repeats a value.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

logger: Final = logging.getLogger("audit")

#: Seconds after which it is worth to try again.
RETRY_AFTER: Final = 5


class Fault(StrEnum):
    """Why a request did not get what it asked for."""

    UNAUTHENTICATED = "unauthenticated"
    NOT_ALLOWED = "not_allowed"
    NOT_FOUND = "not_found"
    UNKNOWN_SKILL = "unknown_skill"
    UNKNOWN_INVOCATION = "unknown_invocation"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TOO_SLOW = "body_too_slow"
    INVALID_QUERY = "invalid_query"
    INVALID_CONTEXT = "invalid_context"
    MALFORMED_BODY = "malformed_body"
    BAD_ARGUMENTS = "bad_arguments"
    UNCANONICAL_ARGUMENTS = "uncanonical_arguments"
    NO_RESULT_KEPT = "no_result_kept"
    REFUSED = "refused"
    SKILL_FAILED = "skill_failed"
    INTERNAL = "internal"
    NOT_ON_RECORD = "not_on_record"
    BUSY = "busy"
    BROKER_UNREACHABLE = "broker_unreachable"
    RESULTS_UNREACHABLE = "results_unreachable"
    WAIT_OVER = "wait_over"


STATUS: Final[Mapping[Fault, int]] = {
    Fault.UNAUTHENTICATED: 401,
    Fault.NOT_ALLOWED: 403,
    Fault.NOT_FOUND: 404,
    Fault.UNKNOWN_SKILL: 404,
    Fault.UNKNOWN_INVOCATION: 404,
    Fault.METHOD_NOT_ALLOWED: 405,
    Fault.UNSUPPORTED_MEDIA_TYPE: 415,
    Fault.BODY_TOO_LARGE: 413,
    Fault.BODY_TOO_SLOW: 408,
    Fault.INVALID_QUERY: 400,
    Fault.INVALID_CONTEXT: 400,
    Fault.MALFORMED_BODY: 400,
    Fault.BAD_ARGUMENTS: 400,
    Fault.UNCANONICAL_ARGUMENTS: 400,
    Fault.NO_RESULT_KEPT: 400,
    Fault.REFUSED: 500,
    Fault.SKILL_FAILED: 500,
    Fault.INTERNAL: 500,
    Fault.NOT_ON_RECORD: 503,
    Fault.BUSY: 503,
    Fault.BROKER_UNREACHABLE: 503,
    Fault.RESULTS_UNREACHABLE: 503,
    Fault.WAIT_OVER: 504,
}


class Problem(Exception):
    """A request ends here.

    Args:
        fault: why.
        detail: in words, without any value.
        status: another one than that of the fault.
        headers: of the answer, besides those that its status asks for.
        members: what the answer's document holds besides.
    """

    def __init__(
        self,
        fault: Fault,
        detail: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(fault, detail)
        self.fault = fault
        self.detail = detail
        self.status = STATUS[fault] if status is None else status
        self.headers = dict(headers or {})
        self.members = members

    def response(self) -> Response:
        """The answer."""
        headers = {**_asked_for(self.status), **self.headers}
        document = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "fault": self.fault.value,
            **self.members,
        }
        return Response(
            json.dumps(document), self.status, headers, media_type="application/problem+json"
        )


def report(error: Exception) -> None:
    """Log an unforeseen error: its type and the lines of code, for its text may repeat a value."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    logger.error("the gateway failed with %s\n%s", type(error).__name__, lines)


def _asked_for(status: int) -> dict[str, str]:
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return {"Retry-After": str(RETRY_AFTER)}
    if status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": 'Bearer realm="skills"'}
    return {}


async def answer_problem(request: Request, error: Exception) -> Response:
    """Called by Starlette for a :class:`Problem`."""
    if not isinstance(error, Problem):
        raise error
    return error.response()


async def answer_http(request: Request, error: Exception) -> Response:
    """Called by Starlette for its own refusals: no such address, no such method."""
    if not isinstance(error, HTTPException):
        raise error
    known = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
    fault = Fault.METHOD_NOT_ALLOWED if known else Fault.NOT_FOUND
    detail = "this address does not take this method" if known else "there is no such address"
    return Problem(fault, detail, headers=error.headers).response()
