"""A worker of a release that does not exist yet: rows with another schema and facts unknown today.

Its rows say ``"schema": 2``, and both payload and meta hold a key more.
"""

from __future__ import annotations

from typing import Any

from audit.row import AuditRow

NEWER = 2
_as_dict = AuditRow.as_dict


def _as_newer(row: AuditRow) -> dict[str, Any]:
    document = _as_dict(row)
    document["schema"] = NEWER
    document["payload"]["cost_cents"] = 7
    document["meta"]["region"] = "eu-central"
    return document


AuditRow.as_dict = _as_newer  # type: ignore[method-assign]

from tests.integration.worker_app import app, skills  # noqa: E402

__all__ = ["app", "skills"]
