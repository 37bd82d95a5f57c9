"""Whether the caller of an invocation was told already how it ended, so that nothing may follow."""

from __future__ import annotations

from audit.errors import AuditMemoryError
from audit.invocation import Invocation
from audit.row import COMPLETED, Identity, Reason
from tasks.runtime import SkillRuntime


def is_hidden(runtime: SkillRuntime, invocation: Invocation) -> bool:
    """Whether a hard time limit is on record, or an ending seen from outside waits before its own.

    Asked of an invocation that is closed.
    """
    if invocation.overtaken:
        return True
    return invocation.late and _reason(runtime, invocation.identity) is Reason.HARD_TIME_LIMIT


def _reason(runtime: SkillRuntime, identity: Identity) -> Reason | None:
    try:
        rows = runtime.memory.rows(
            tenant_id=identity.tenant_id, request_id=identity.request_id, kind=COMPLETED
        )
        return next((Reason(row.meta["reason"]) for row in rows), None)
    except AuditMemoryError:
        return None
