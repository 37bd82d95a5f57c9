"""What tests of copying share."""

from __future__ import annotations

from random import Random

from audit.copying.copy import Copied, Copy
from audit.ledger.claims import Trust
from audit.memory.base import AuditMemory
from audit.testing import InMemory
from tests.ledger_writer import just_now, rows_of
from tests.sealing import KEYS, PREFIX
from tests.support import TENANT

TRUST = Trust(KEYS.verifiers, PREFIX)


def copied(source: AuditMemory, target: AuditMemory, **more: object) -> dict[str, Copied]:
    """What a run says of each tenant."""
    options: dict[str, object] = {"trust": TRUST, "pause": lambda seconds: None, **more}
    work = Copy(source=source, target=target, **options)  # type: ignore[arg-type]
    return {of.tenant_id: of for of in work.run()}


def fill(memory: InMemory, count: int, tenant_id: str = TENANT, seed: int = 1) -> None:
    for row in just_now(rows_of(tenant_id, count, Random(seed))):
        memory.emit(row)
