"""What the audit pages read, beside a short history and a long one: each must cost the same.

The rows are those of a plausible host: a few tenants of uneven weight, skills that fail now and
then, invocations that publish others, a few refusals, a few that are open. A second server has a
thousand tenants. Each look is timed in turns with all others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from audit import open_memory
from audit.board.invocation import invocation
from audit.board.listing import listing
from audit.board.overview import overview
from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from audit.memory.base import RowFilter
from audit.row import (
    COMPLETED,
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
from bench.report import millis, table
from bench.server import client
from bench.stats import percentile

#: For every task of the throughput section: rows of the short history, and of the long one.
SHORT_PER_TASK: Final = 10
LONG_PER_TASK: Final = 1000
#: Rows of a server with many tenants, for every task, and how many tenants.
CROWD_PER_TASK: Final = 50
CROWD: Final = 1000
TENANTS: Final = 8
ROUNDS: Final = 20
#: Seconds; what a page may take.
AIM: Final = 0.3
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What one kind of page took, in seconds.

    Attributes:
        what: which page.
        rows: how many the memory had.
        took: each time.
        looked: entries that it looked at.
    """

    what: str
    rows: int
    took: list[float]
    looked: int


@dataclass(slots=True)
class Known:
    """Invocations that the pages are asked for: the newest of each kind, and one in the middle."""

    plain: str = ""
    parent: str = ""
    task_id: str = ""
    tenant_id: str = ""


def measure(tasks: int) -> list[Look]:
    """Every page beside a short history, beside a long one, and beside many tenants."""
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        memory = open_memory(server.url, timeout=60)
        rows = history(TENANTS, known := Known())
        fill(server.url, memory, islice(rows, SHORT_PER_TASK * tasks))
        looks = _looks(memory, known, SHORT_PER_TASK * tasks)
        fill(server.url, memory, islice(rows, (LONG_PER_TASK - SHORT_PER_TASK) * tasks))
        looks += _looks(memory, known, LONG_PER_TASK * tasks)
        memory.close()
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        memory = open_memory(server.url, timeout=60)
        rows = history(CROWD, known := Known())
        fill(server.url, memory, islice(rows, CROWD_PER_TASK * tasks))
        crowd = _looks(memory, known, CROWD_PER_TASK * tasks)
        memory.close()
    return looks + [replace(look, what=f"{look.what}; {CROWD:,} tenants") for look in crowd]


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
        known.plain, known.tenant_id = identity.request_id, tenant
        known.task_id = str(identity.task_id)
        known.parent = parent.request_id if parent else known.parent


def _identity(dice: random.Random, number: int, tenant: str, parent: Identity | None) -> Identity:
    return Identity(
        request_id=f"01{number:024d}",
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


def _looks(memory: AuditMemory, known: Known, rows: int) -> list[Look]:
    pages = _pages(memory, known)
    looked = {what: page() for what, page in pages.items()}
    took: dict[str, list[float]] = {what: [] for what in pages}
    for _ in range(ROUNDS):
        for what, page in pages.items():
            began = time.perf_counter()
            page()
            took[what].append(time.perf_counter() - began)
    return [Look(what=w, rows=rows, took=took[w], looked=looked[w]) for w in pages]


def _pages(memory: AuditMemory, known: Known) -> dict[str, Callable[[], int]]:
    """Each page by its name; it gives how many entries it looked at."""

    def overviewed(tenant_id: str | None) -> int:
        return overview(memory, datetime.now(UTC), ledger=True, tenant_id=tenant_id).looked

    def listed(**parts: Any) -> int:
        return listing(memory, RowFilter(**parts)).looked

    def viewed(request_id: str) -> int:
        view = invocation(memory, request_id, datetime.now(UTC), ledger=True)
        return 0 if view is None else view.looked

    now = datetime.now(UTC)
    filters: dict[str, dict[str, Any]] = {
        "no filter": {},
        "tenant": {"tenant_id": known.tenant_id},
        "since a minute": {"since": now - timedelta(minutes=1)},
        "until the first row": {"until": now - timedelta(days=1)},
        "kind": {"kind": COMPLETED},
        "skill": {"skill_id": "skills.family_3.skill_3"},
        "outcome panic": {"outcome": "panic"},
        "persona": {"caller_persona": "persona-3@0.4.1"},
        "trace": {"trace_id": f"{1:032x}"},
        "task": {"task_id": known.task_id},
        "request": {"request_id": known.plain},
        "one that never matches": {"skill_id": "no.such.skill"},
    }
    return {
        "overview": lambda: overviewed(None),
        "overview, one tenant": lambda: overviewed(known.tenant_id),
        **{f"list, {name}": _bound(listed, parts) for name, parts in filters.items()},
        "invocation": lambda: viewed(known.plain),
        "invocation with children": lambda: viewed(known.parent),
        "invocation, the very first": lambda: viewed(f"01{1:024d}"),
    }


def _bound(listed: Callable[..., int], parts: dict[str, Any]) -> Callable[[], int]:
    return lambda: listed(**parts)


def _tenant(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def report(looks: Sequence[Look]) -> str:
    lines = [
        [
            look.what,
            f"{look.rows:,}",
            f"{look.looked:,}",
            millis(percentile(look.took, 50)),
            millis(percentile(look.took, 95)),
            millis(max(look.took)),
        ]
        for look in looks
    ]
    slowest = max(looks, key=lambda look: percentile(look.took, 95))
    p95 = percentile(slowest.took, 95)
    word = "met" if p95 < AIM else "NOT met"
    head = ("what a page reads", "rows", "looked at", "p50 ms", "p95 ms", "max ms")
    verdict = (
        f"Slowest: {slowest.what}, p95 {millis(p95)} ms; the aim of {AIM * 1e3:.0f} ms is {word}."
    )
    return f"{table(head, lines)}\n\n{verdict}"


def raw(looks: Sequence[Look]) -> list[dict[str, Any]]:
    """Every sample, in seconds."""
    return [asdict(look) for look in looks]
