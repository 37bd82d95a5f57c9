"""The audited skill host's audit: rows, the memory that keeps them, and who calls for whom."""

from __future__ import annotations

from audit.context import InvocationContext, acting_as, current_context
from audit.errors import (
    AuditEmitFailed,
    AuditError,
    CanonicalizationError,
    InvalidInvocationContext,
    MissingInvocationContext,
)
from audit.memory import AuditMemory, open_memory
from audit.row import AuditRow, Outcome, Reason

__all__ = [
    "AuditEmitFailed",
    "AuditError",
    "AuditMemory",
    "AuditRow",
    "CanonicalizationError",
    "InvalidInvocationContext",
    "InvocationContext",
    "MissingInvocationContext",
    "Outcome",
    "Reason",
    "acting_as",
    "current_context",
    "open_memory",
]
