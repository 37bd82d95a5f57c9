"""What an emit hands to a SQL database, the same for every one."""

from __future__ import annotations

from dataclasses import dataclass

from audit.memory.action import action_of
from audit.memory.base import (
    DEATHS,
    Hold,
    Once,
    insist_on_started,
    message_of,
)
from audit.memory.sql.tables import columns_of, written
from audit.row import AuditRow


@dataclass(frozen=True, slots=True)
class Emitted:
    """One row on its way into the tables.

    Attributes:
        action: started, completed (reported by who ran the body), settled (by another), refused.
        tenant_id, request_id: as columns hold them.
        stored: the row's bytes.
        columns: what stands in the columns from ``moment`` to ``task_id``.
        dead: the message whose worker died; ``None`` where none did.
        once, hold: as the emit was given them.
    """

    action: str
    tenant_id: str
    request_id: str
    stored: bytes
    columns: tuple[int | str | None, ...]
    dead: str | None
    once: Once | None
    hold: Hold | None

    @classmethod
    def of(cls, row: AuditRow, once: Once | None, hold: Hold | None) -> Emitted:
        """Raises:
        ValueError: ``once`` or ``hold`` came with another row than a started one.
        RowRefusedError: the row is none that can be emitted.
        """
        action = action_of(row)
        if once is not None or hold is not None:
            insist_on_started(row)
        dead = written(message_of(row)) if row.meta.get("reason") in DEATHS else None
        return cls(
            action=action,
            tenant_id=written(row.tenant_id),
            request_id=written(row.request_id),
            stored=row.to_bytes(),
            columns=columns_of(row),
            dead=dead,
            once=once,
            hold=hold,
        )
