"""What an invocation tells the operator: each alarm is a counter, a log record, or both.

Every record goes to the logger ``audit`` and says in its field ``severity`` how bad it is; none
repeats an argument or a result.
"""

from __future__ import annotations

import logging
from typing import Final

from audit import metrics
from audit.errors import AuditError, AuditMemoryError
from audit.row import AuditRow, Ending, Identity, Reason, Refusal

logger: Final = logging.getLogger("audit")


def refused(identity: Identity, refusal: Refusal, why: str) -> None:
    """An invocation was not allowed to start."""
    metrics.skill_refused(identity.skill_id, refusal.value)
    logger.warning(
        "skill %s refused (%s), request_id %s: %s",
        identity.skill_id,
        refusal.value,
        identity.request_id,
        why,
        extra={"severity": "sev-3"},
    )


def not_started(identity: Identity, error: AuditMemoryError) -> None:
    """The memory did not take a started or refused row."""
    metrics.emit_failed("start")
    logger.critical(
        "audit row not emitted at start, skill %s not dispatched, request_id %s: %s",
        identity.skill_id,
        identity.request_id,
        error,
        extra={"severity": "sev-1"},
    )


def spooled(row: AuditRow) -> None:
    """The memory did not take a completed row, the spool did."""
    metrics.emit_failed("completed")
    logger.critical(
        "audit row not emitted at completed, the skill's effect stands, the row waits in the"
        " spool: request_id %s",
        row.request_id,
        extra={"severity": "sev-1"},
    )


def unrecorded(row: AuditRow, error: AuditError) -> None:
    """The row itself goes into the log record: until it is on record elsewhere, this is it."""
    metrics.emit_failed("completed")
    text = row.to_bytes().decode()
    logger.critical(
        "audit row not emitted at completed, the skill's effect stands: %s; the row: %s",
        error,
        text,
        extra={"severity": "sev-1", "audit_row": text},
    )


def barred(row: AuditRow) -> None:
    """An ending was seen from outside, and the memory knows of no start.

    It never started, or the memory has lost its started row: whoever saw it cannot tell. No row can
    be kept of it, so the log record holds it.
    """
    if row.meta.get("reason") == Reason.NOT_DISPATCHED:
        return
    text = row.to_bytes().decode()
    logger.error(
        "invocation %s has ended and has no started row: it never started, or the memory has lost"
        " that row; how it ended: %s",
        row.request_id,
        text,
        extra={"severity": "sev-2", "audit_row": text},
    )


def late(row: AuditRow) -> None:
    """A completion came after the invocation had been closed."""
    metrics.skill_late(str(row.payload.get("skill_id", "")))
    logger.warning("invocation %s had been closed already", row.request_id)


def insist_on_hash(identity: Identity, ending: Ending) -> None:
    """A body that returned has a result hash; that one is missing is an error in our own code."""
    if not ending.result_hash:
        logger.critical(
            "a success that returned has no result hash, request_id %s",
            identity.request_id,
            extra={"severity": "sev-1"},
        )


def negative_duration(identity: Identity) -> None:
    """The monotonic clock went backwards."""
    logger.error(
        "negative duration clamped to 0, request_id %s",
        identity.request_id,
        extra={"severity": "sev-3"},
    )
