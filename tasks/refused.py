"""Fire and forget: a message that the gate refused is published again instead of lost.

Celery acknowledges a message whose ``before_start`` raises. A caller who reads the result gets
``AuditEmitFailed`` and can call again; nobody does so for a beat tick. A skill declared with
``retry_when_refused=True`` is published again with a growing delay, as the same message with its
caller, links and chain, for nothing of it has happened yet.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery.exceptions import Reject, Retry
from kombu.exceptions import OperationalError

from audit.errors import AuditEmitFailed

logger: Final = logging.getLogger("audit")

REFUSALS_HEADER: Final = "audit_refusals"

#: Seconds before the first time; doubled each time, up to the longest.
FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60.0


def publish_again(
    task: Any,
    request: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: AuditEmitFailed,
) -> None:
    """Publish a refused message again, if its skill says so and it was not refused too often.

    Raises:
        Retry: it was published.
        Reject: the broker is away as well, and keeps the message (``acks_late``). Without
            ``acks_late`` it has been acknowledged already: then the refusal stands, and is sev-1.
    """
    times = _refusals(request) + 1
    if not task.retry_when_refused or request.is_eager or times > task.max_refusals:
        return
    seconds = _delay(times)
    headers = {**(request.headers or {}), REFUSALS_HEADER: times}
    again = task.signature_from_request(
        request, args, kwargs, countdown=seconds, retries=request.retries, headers=headers
    )
    try:
        again.apply_async()
    except OperationalError as problem:
        _report_unpublished(task, request, problem)
        if task.acks_late:
            raise Reject(error, requeue=True) from problem  # the broker still has the message
        return
    raise Retry(exc=error, when=seconds)


def _report_unpublished(task: Any, request: Any, problem: Exception) -> None:
    logger.critical(
        "refused message %s of skill %s could not be published again: %s",
        request.id,
        task.name,
        problem,
        extra={"severity": "sev-1"},
    )


def _refusals(request: Any) -> int:
    times = vars(request).get(REFUSALS_HEADER)
    return times if type(times) is int and times > 0 else 0


def _delay(times: int) -> float:
    """Spread a little, so that what was refused together does not come back together."""
    grown = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(times - 1, 10))
    return float(grown * random.uniform(0.75, 1.25))  # noqa: S311 - nothing secret about it
