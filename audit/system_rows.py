"""Rows of the audit trail about itself, module ``audit``: a key was changed, old rows were pruned.

They belong to no invocation. Each has a ULID of its own as its ``request_id`` and is stored once
under it, as a refused row is; nothing opens or closes it. Within ``meta`` they say who wrote them.
"""

from __future__ import annotations

from typing import Any, Final

from audit.errors import RowError
from audit.row import NIL_TENANT, AuditRow

KEY_ROTATED: Final = "audit.key_rotated"
PRUNED: Final = "audit.pruned"

#: Every kind of row that is of no invocation.
SYSTEM_KINDS: Final = frozenset({KEY_ROTATED, PRUNED})


def audit_key_rotated(
    request_id: str, *, new_key: str, old_key: str | None, ts: str, worker: str = ""
) -> AuditRow:
    """Another key signs the checkpoints from now on.

    Args:
        request_id: a new ULID.
        new_key: the verifier key (C2SP text) of the newest signer. Public, no secret.
        old_key: the one before it; ``None`` where none is known.
        ts: when, as :func:`audit.row.timestamp` writes it.
        worker: the process that saw it.
    """
    payload = {
        "new_key": new_key,
        "old_key": old_key,
        "tenant_id": NIL_TENANT,
        "request_id": request_id,
    }
    return AuditRow(kind=KEY_ROTATED, ts=ts, payload=payload, meta=_meta(worker))


def audit_pruned(
    request_id: str,
    tenant_id: str,
    *,
    before: str,
    first_index: int,
    rows: int,
    root: str,
    note: str,
    ts: str,
    worker: str = "",
) -> AuditRow:
    """The bytes of old rows were removed; their hashes stay in the tree.

    Args:
        request_id: a new ULID.
        tenant_id: whose rows; the nil tenant's log can be pruned too.
        before: rows older than this were to go, as :func:`audit.row.timestamp` writes it.
        first_index: place in the tenant's log of the first row that went, from 0.
        rows: how many went, side by side from there, those included that had gone before.
        root: of the tree that ends with the last of them, 64 hex digits.
        note: rows and root, signed with the ledger's keys (:mod:`audit.ledger.pruned`).
        ts: when, written likewise.
        worker: the process that did it.

    Raises:
        RowError: a number is none that can be.
    """
    if first_index < 0 or rows < 1:
        raise RowError(f"{rows} rows from index {first_index} on cannot be pruned")
    payload = {
        "before": before,
        "first_index": first_index,
        "rows": rows,
        "root": root,
        "note": note,
        "tenant_id": tenant_id,
        "request_id": request_id,
    }
    return AuditRow(kind=PRUNED, ts=ts, payload=payload, meta=_meta(worker))


def _meta(worker: str) -> dict[str, Any]:
    """What every envelope has, where no message and no invocation stands behind the row."""
    return {
        "task_id": None,
        "attempt": 0,
        "redelivered": False,
        "parent_request_id": None,
        "worker": worker,
        "reason": None,
    }
