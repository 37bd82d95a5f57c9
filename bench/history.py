"""A history for pages to be read from: rows of a plausible host, and how a server gets them.

Tenants of uneven weight, skills that fail now and then, invocations that publish others, a few
refusals, a few that are open.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from audit.row import (
    AuditRow,
    Ending,
    Identity,
    Reason,
    Refusal,
    skill_invoked_completed,
    skill_invoked_refused,
    skill_invoked_started,
    timestamp,
)
from bench.server import client

#: Rows written in one go.
BATCH: Final = 1000
#: One of so many invocations is refused, published by the one before, still open.
REFUSED_EVERY, CHILD_EVERY, OPEN_EVERY = 100, 5, 10_000
_HASH: Final = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
_ENDINGS: Final = (
    *[Ending(reason=Reason.RETURNED, result_hash=_HASH)] * 90,
    *[Ending(reason=Reason.RAISED, error_message="ConnectionError: feed 7 did not answer")] * 7,
    *[Ending(reason=Reason.SOFT_TIME_LIMIT, error_message="SoftTimeLimitExceeded: 60")] * 2,
    Ending(reason=Reason.WORKER_LOST, error_message="WorkerLostError: signal 9 (SIGKILL)"),
)


@dataclass(slots=True)
class Known:
    """The newest invocation of each kind, and how many there are."""

    number: int = 0
    plain: str = ""
    parent: str = ""
    task_id: str = ""
    tenant_id: str = ""


def history(tenants: int, known: Known) -> Iterator[AuditRow]:
    """Rows without end, the same in each run but for their times."""
    dice = random.Random(6)
    before: dict[str, Identity] = {}
    number = 0
    while True:
        number += 1
        tenant = _tenant(min(dice.randrange(tenants), dice.randrange(tenants)))
        parent = before.get(tenant) if dice.randrange(CHILD_EVERY) == 0 else None
        identity = before[tenant] = _identity(dice, number, tenant, parent)
        yield from _rows(dice, identity)
        known.number, known.plain, known.tenant_id = number, identity.request_id, tenant
        known.task_id = str(identity.task_id)
        known.parent = parent.request_id if parent else known.parent or known.plain


def request_id_of(number: int) -> str:
    """The id of the invocation that was made as that one, from 1."""
    return f"01{number:024d}"


def _identity(dice: random.Random, number: int, tenant: str, parent: Identity | None) -> Identity:
    return Identity(
        request_id=request_id_of(number),
        skill_id=f"skills.family_{dice.randrange(5)}.skill_{dice.randrange(8)}",
        version="1.4.2",
        caller_persona=f"persona-{dice.randrange(12)}@0.4.1",
        tenant_id=tenant,
        trace_id=f"{number // 7:032x}",
        task_id=f"7f1f4c1e-93a1-4f0f-9d0c-{number:012d}",
        parent_request_id=parent.request_id if parent else None,
        worker=f"01WORKER{dice.randrange(16):018d}",
    )


def _rows(dice: random.Random, identity: Identity) -> Iterator[AuditRow]:
    ts = timestamp(datetime.now(UTC))
    if dice.randrange(REFUSED_EVERY) == 0:
        yield skill_invoked_refused(identity, dice.choice(list(Refusal)), ts=ts)
        return
    yield skill_invoked_started(identity, _HASH, ts=ts)
    if dice.randrange(OPEN_EVERY):
        milliseconds = int(dice.lognormvariate(4, 1.5))
        yield skill_invoked_completed(identity, dice.choice(_ENDINGS), milliseconds, ts=ts)


def fill(url: str, memory: Any, rows: Iterator[AuditRow]) -> None:
    """Emit ``rows``, many in one round trip."""
    connection = client(url)
    memory.check()
    sha = connection.script_load(memory.script)
    while batch := list(islice(rows, BATCH)):
        pipeline = connection.pipeline(transaction=False)
        pipeline.sadd("audit:tenants", *{row.tenant_id for row in batch})
        for row in batch:
            pipeline.evalsha(sha, *memory.command(row))
        pipeline.execute()
    connection.close()


def _tenant(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"
