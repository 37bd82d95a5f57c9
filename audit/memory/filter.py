"""Which rows somebody wants to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from audit.row import AuditRow


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """Which rows to read; every part that is ``None`` lets all pass.

    ``since`` (inclusive) and ``until`` (exclusive) are aware datetimes compared with the row's
    ``ts``. ``skill_id``, ``outcome`` and ``caller_persona`` look at the row itself: a completed row
    carries no persona, a started row no outcome.
    """

    tenant_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    kind: str | None = None
    skill_id: str | None = None
    outcome: str | None = None
    caller_persona: str | None = None
    trace_id: str | None = None
    request_id: str | None = None
    task_id: str | None = None

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                raise ValueError(f"{name} must say its time zone, e.g. datetime.now(UTC)")

    def matches(self, row: AuditRow) -> bool:
        """Whether ``row`` passes every part."""
        return self._in_time(row) and all(
            wanted is None or wanted == found for wanted, found in self._pairs(row)
        )

    def _pairs(self, row: AuditRow) -> Iterator[tuple[str | None, Any]]:
        payload = row.payload
        yield self.kind, row.kind
        yield self.tenant_id, payload.get("tenant_id")
        yield self.skill_id, payload.get("skill_id")
        yield self.outcome, payload.get("outcome")
        yield self.caller_persona, payload.get("caller_persona")
        yield self.trace_id, payload.get("trace_id")
        yield self.request_id, payload.get("request_id")
        yield self.task_id, row.meta.get("task_id")

    def _in_time(self, row: AuditRow) -> bool:
        if self.since is None and self.until is None:
            return True
        moment = datetime.fromisoformat(row.ts)
        return (self.since is None or self.since <= moment) and (
            self.until is None or moment < self.until
        )
