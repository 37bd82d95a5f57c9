"""The rows of the demo, printed as they come and kept to be asked about."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

import click

from audit.memory import AuditMemory
from audit.memory.base import RowFilter
from audit.row import COMPLETED, AuditRow
from demo import show
from demo.waiting import POLL_SECONDS, DemoError

#: How long a row may take to come. One takes a moment; a machine under load takes more.
ROW_SECONDS: Final = 30.0


class Journal:
    """Follows the memory, as ``celery -A demo.skills audit tail`` does.

    Args:
        memory: followed from now on.
        tenants: whose rows are the demo's; a memory that was there before may hold others.
        check: asked between two rows; raises where waiting has become pointless.
        missing: makes the error for a row that does not come, out of what was waited for.
    """

    def __init__(
        self,
        memory: AuditMemory,
        tenants: Collection[str],
        *,
        check: Callable[[], None],
        missing: Callable[[str], DemoError],
    ) -> None:
        self.rows: list[AuditRow] = []
        self._arriving = memory.follow(RowFilter(), poll=POLL_SECONDS)
        self._tenants = tenants
        self._check = check
        self._missing = missing

    def read_until(self, condition: Callable[[], object], what: str) -> None:
        """Print rows until ``condition`` is true; ``what`` says in an error what that means."""
        deadline = time.monotonic() + ROW_SECONDS
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                raise self._missing(what)
            self._take(next(self._arriving))

    def of_task(self, task_id: str) -> list[AuditRow]:
        """The rows so far of one message's invocations."""
        return [row for row in self.rows if row.meta["task_id"] == task_id]

    def is_closed(self, task_id: str) -> bool:
        """Whether one message's invocation is completed."""
        return any(row.kind == COMPLETED for row in self.of_task(task_id))

    def published_by(self, request_id: str) -> list[AuditRow]:
        """The rows so far of what one invocation published."""
        return [row for row in self.rows if row.meta["parent_request_id"] == request_id]

    def closed_for(self, persona: str) -> list[AuditRow]:
        """The completed rows so far of what a persona called; they do not name it themselves."""
        called = {
            row.request_id for row in self.rows if row.payload.get("caller_persona") == persona
        }
        return [row for row in self.rows if row.kind == COMPLETED and row.request_id in called]

    def _take(self, row: AuditRow | None) -> None:
        if row is not None and row.tenant_id in self._tenants:
            self.rows.append(row)
            click.echo(show.row(row))
