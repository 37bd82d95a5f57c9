"""Queries beside a long history: what each takes, whatever the memory holds.

The rows are those of :mod:`bench.past`. Each round asks for other invocations and traces, from all
over the history, so that what is cached is what a cache of that size has. How much memory a query
takes in the process that reads is measured in a call of its own.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from audit import open_memory
from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory, migrate_memory
from audit.memory.base import RowFilter
from bench.bulk import load_postgres, load_sqlite
from bench.history import fill
from bench.past import END, Met, Past, tenant_of
from bench.report import mebibytes, millis, table
from bench.stats import percentile
from demo.postgres import PostgresServer

KINDS: Final = ("redis", "postgres", "sqlite")
#: For every task of the throughput section: rows of the history, unless told otherwise.
ROWS_PER_TASK: Final = 100
#: Calls of each query, for each round.
PER_ROUND: Final = 5
#: Seconds that a query may take at p95, and bytes that it may hold at once.
RUNNING, BY_ID, PAGE, WALK = 0.050, 0.020, 0.300, None
FLAT: Final = 16 * 2**20
#: Rows that are read in one go to see that memory stays flat.
WALKED: Final = 50_000
WEEK: Final = timedelta(weeks=1)
#: A server with memory for a cache, as one of this size would have.
_POSTGRES: Final = {
    "shared_buffers": "1GB",
    "maintenance_work_mem": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}

#: Gives how many rows it found.
Query = Callable[[Met], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One query.

    Attributes:
        memory: which kind.
        what: which query.
        rows: how many the memory had.
        aim: seconds, if there is one.
        took: seconds, each time.
        cpu: seconds of CPU of the process that asked, the mean: what tells where a machine is busy.
        found: rows that it found, the last time.
        peak: bytes that it held at once in the process that asked.
    """

    memory: str
    what: str
    rows: int
    aim: float | None
    took: list[float]
    cpu: float
    found: int
    peak: int


def measure(kinds: Sequence[str], rows: int, rounds: int) -> list[Asked]:
    """Every query on each kind of memory, each with a history of its own."""
    asked: list[Asked] = []
    for kind in kinds:
        past = Past(rows)
        with _filled(kind, past) as memory:
            asked += _ask(kind, memory, past, PER_ROUND * rounds)
    return asked


@contextmanager
def _filled(kind: str, past: Past) -> Iterator[AuditMemory]:
    with {"redis": _redis, "postgres": _postgres, "sqlite": _sqlite}[kind](past) as url:
        memory = open_memory(url, timeout=60)
        try:
            yield memory
        finally:
            memory.close()


@contextmanager
def _redis(past: Past) -> Iterator[str]:
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        memory = open_memory(server.url, timeout=60)
        fill(server.url, memory, iter(past))
        memory.close()
        yield server.url


@contextmanager
def _postgres(past: Past) -> Iterator[str]:
    with PostgresServer(options=_POSTGRES) as server:
        url = server.url(schema="audit")
        migrate_memory(url)
        load_postgres(url, server.url(), "audit", past)
        yield url


@contextmanager
def _sqlite(past: Past) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = f"sqlite:///{Path(folder)}/audit.db"
        load_sqlite(url, past)
        yield url


def _ask(kind: str, memory: AuditMemory, past: Past, times: int) -> list[Asked]:
    queries = _queries(kind, memory)
    took: dict[str, list[float]] = {what: [] for what in queries}
    found, cpu = dict.fromkeys(queries, 0), dict.fromkeys(queries, 0.0)
    for met in islice(cycle(past.met), times):
        for what, (_, query) in queries.items():
            used, began = time.process_time(), time.perf_counter()
            found[what] = query(met)
            took[what].append(time.perf_counter() - began)
            cpu[what] += (time.process_time() - used) / times
    return [
        Asked(
            memory=kind, what=what, rows=past.rows, aim=aim, took=took.get(what, []),
            cpu=cpu.get(what, 0.0), found=found.get(what, 0),
            peak=_peak(query, past.met[len(past.met) // 2]),
        )
        for what, (aim, query) in (queries | _walks(memory)).items()
    ]  # fmt: skip


def _peak(query: Query, met: Met) -> int:
    tracemalloc.start()
    try:
        query(met)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _queries(kind: str, memory: AuditMemory) -> dict[str, tuple[float | None, Query]]:
    week = RowFilter(tenant_id=tenant_of(0), since=END - WEEK, until=END)

    def page_of(parts: dict[str, Any]) -> Query:
        return lambda _: len(memory.page(replace(week, **parts)).rows)

    def old_page(_: Met) -> int:
        """From where such a week ends, and an hour later, as the server's clock has it."""
        until = END - 8 * WEEK
        wanted = RowFilter(
            tenant_id=tenant_of(0), since=until - WEEK, until=until, outcome="timeout"
        )
        cursor = memory.cursor_at(until + timedelta(hours=1))
        return len(memory.page(wanted, cursor=cursor).rows)

    asked: dict[str, tuple[float | None, Query]] = {
        "running, one tenant": (RUNNING, lambda _: _count(memory.running(tenant_of(0)))),
        "running, all tenants": (RUNNING, lambda _: _count(memory.running())),
        "request_id": (BY_ID, lambda met: _count(memory.rows(request_id=met.request_id))),
        "trace_id": (BY_ID, lambda met: _count(memory.rows(trace_id=met.trace_id))),
        "trace_id and tenant": (
            BY_ID,
            lambda met: _count(memory.rows(met.tenant_id, trace_id=met.trace_id)),
        ),
        "first page of a trace_id": (
            BY_ID,
            lambda met: len(memory.page(RowFilter(trace_id=met.trace_id)).rows),
        ),
        **{
            f"a tenant's week, {name}, first page": (PAGE, page_of(parts))
            for name, parts in _PARTS.items()
        },
    }
    # On Redis a row stands where it was stored, and all of these were stored today.
    if kind != "redis":
        asked["the same of 8 weeks ago, outcome timeout"] = (PAGE, old_page)
    return asked


_PARTS: Final[dict[str, dict[str, Any]]] = {
    "outcome error": {"outcome": "error"},
    "outcome panic (1 %)": {"outcome": "panic"},
    "a persona": {"caller_persona": "persona-3@0.4.1"},
    "a skill": {"skill_id": "skills.family_3.skill_3"},
    "a skill that is not there": {"skill_id": "no.such.skill"},
}


def _walks(memory: AuditMemory) -> dict[str, tuple[float | None, Query]]:
    """What is read row by row, and only its memory measured."""
    return {
        f"(memory only) {WALKED:,} rows of a tenant": (
            WALK,
            lambda _: _count(islice(memory.rows(tenant_of(0), since=END - 13 * WEEK), WALKED)),
        ),
    }


def _count(rows: Iterable[Any]) -> int:
    return sum(1 for _ in rows)


def report(asked: Sequence[Asked]) -> str:
    lines = [
        [
            f"{one.memory}: {one.what}",
            f"{one.rows:,}",
            str(one.found) if one.took else "",
            *([millis(percentile(one.took, p)) for p in (50, 95)] if one.took else ["", ""]),
            millis(one.cpu) if one.took else "",
            "" if one.aim is None else f"{one.aim * 1e3:.0f}",
            mebibytes(one.peak),
        ]
        for one in asked
    ]
    head = ("query", "rows", "found", "p50 ms", "p95 ms", "CPU ms", "aim ms", "peak MiB")
    return f"{table(head, lines)}\n\n{_verdict(asked)}"


def _verdict(asked: Sequence[Asked]) -> str:
    late = [
        f"{one.memory}: {one.what}"
        for one in asked
        if one.took and one.aim is not None and percentile(one.took, 95) >= one.aim
    ]
    peak = max(one.peak for one in asked)
    word = "flat" if peak < FLAT else "NOT flat"
    aims = f"over its aim at p95: {'; '.join(late)}." if late else "Every aim is met at p95."
    return f"{aims} The most that a query holds at once is {mebibytes(peak)} MiB: {word}."


def raw(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Every sample, in seconds."""
    return [asdict(one) for one in asked]
