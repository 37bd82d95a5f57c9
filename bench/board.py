"""What the audit pages read, beside a short history and a long one: each must cost the same.

Each look is timed in turns with all others, and so is each page that a real Flower makes of it
(:mod:`bench.pages`). A second server has a thousand tenants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
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
from audit.row import COMPLETED
from bench import pages
from bench.history import Known, fill, history, request_id_of
from bench.look import Look
from bench.report import millis, table
from bench.stats import percentile

#: For every task of the throughput section: rows of the short history, and of the long one.
SHORT_PER_TASK: Final = 10
LONG_PER_TASK: Final = 1000
#: Rows of a server with many tenants, for every task, and how many tenants.
CROWD_PER_TASK: Final = 50
CROWD: Final = 1000
TENANTS: Final = 8
#: Reads of each kind, for each round.
PER_ROUND: Final = 2
#: Seconds; what a page may take.
AIM: Final = 0.3


def measure(rounds: int, tasks: int) -> list[Look]:
    """Every page beside a short history, beside a long one, and beside many tenants."""
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        memory = open_memory(server.url, timeout=60)
        rows = history(TENANTS, known := Known())
        fill(server.url, memory, islice(rows, SHORT_PER_TASK * tasks))
        looks = _looks(server.url, memory, known, rows=SHORT_PER_TASK * tasks, rounds=rounds)
        fill(server.url, memory, islice(rows, (LONG_PER_TASK - SHORT_PER_TASK) * tasks))
        looks += _looks(server.url, memory, known, rows=LONG_PER_TASK * tasks, rounds=rounds)
        memory.close()
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        memory = open_memory(server.url, timeout=60)
        rows = history(CROWD, known := Known())
        fill(server.url, memory, islice(rows, CROWD_PER_TASK * tasks))
        crowd = _looks(server.url, memory, known, rows=CROWD_PER_TASK * tasks, rounds=rounds)
        memory.close()
    return looks + [replace(look, what=f"{look.what}; {CROWD:,} tenants") for look in crowd]


def _looks(url: str, memory: AuditMemory, known: Known, *, rows: int, rounds: int) -> list[Look]:
    reads = _reads(memory, known)
    looked = {what: read() for what, read in reads.items()}
    took: dict[str, list[float]] = {what: [] for what in reads}
    cpu = dict.fromkeys(reads, 0.0)
    for _ in range(PER_ROUND * rounds):
        for what, read in reads.items():
            used, began = time.process_time(), time.perf_counter()
            read()
            took[what].append(time.perf_counter() - began)
            cpu[what] += (time.process_time() - used) / (PER_ROUND * rounds)
    looks = [Look(what=w, rows=rows, took=took[w], looked=looked[w], cpu=cpu[w]) for w in reads]
    return looks + pages.measure(url, memory, known, rows=rows, rounds=rounds)


def _reads(memory: AuditMemory, known: Known) -> dict[str, Callable[[], int]]:
    """What each page reads, by its name; it gives how many entries it looked at."""

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
        "invocation, the very first": lambda: viewed(request_id_of(1)),
    }


def _bound(listed: Callable[..., int], parts: dict[str, Any]) -> Callable[[], int]:
    return lambda: listed(**parts)


def report(looks: Sequence[Look]) -> str:
    lines = [
        [
            look.what,
            f"{look.rows:,}",
            f"{look.looked:,}",
            millis(percentile(look.took, 50)),
            millis(percentile(look.took, 95)),
            millis(max(look.took)),
            millis(look.cpu),
        ]
        for look in looks
    ]
    slowest = max(looks, key=lambda look: percentile(look.took, 95))
    p95 = percentile(slowest.took, 95)
    word = "met" if p95 < AIM else "NOT met"
    head = ("what a page reads", "rows", "looked at", "p50 ms", "p95 ms", "max ms", "CPU ms")
    verdict = (
        f"Slowest: {slowest.what}, p95 {millis(p95)} ms; the aim of {AIM * 1e3:.0f} ms is {word}."
    )
    return f"{table(head, lines)}\n\n{verdict}"


def raw(looks: Sequence[Look]) -> list[dict[str, Any]]:
    """Every sample, in seconds."""
    return [asdict(look) for look in looks]
