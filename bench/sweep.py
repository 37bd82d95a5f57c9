"""One sweep of the reconciler beside a long history: it must cost what is running, not what was."""

from __future__ import annotations

import hashlib
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ulid import ULID

from audit import open_memory
from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from audit.reconciler import Reconciler
from audit.row import (
    AuditRow,
    Ending,
    Identity,
    Reason,
    skill_invoked_completed,
    skill_invoked_started,
)
from bench.report import mebibytes, millis, table
from bench.server import client
from bench.stats import percentile

#: Invocations that have ended, for every task of the throughput section.
CLOSED_PER_TASK: Final = 1000
OPEN: Final = 1000
SWEEPS: Final = 10
TENANTS: Final = 10
#: Rows written in one go while the history is made.
BATCH: Final = 2000
_HASH: Final = hashlib.sha256(b"{}").hexdigest()
_TS: Final = "2026-01-01T00:00:00.000000Z"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweeps:
    """What sweeps took, in seconds, and the most memory one held, in bytes."""

    closed: int
    open: int
    took: list[float]
    peak: int


def measure(tasks: int) -> list[Sweeps]:
    """Sweeps over the same open invocations, with no history and with a long one."""
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        memory = open_memory(server.url, timeout=60)
        write(server.url, memory, history(OPEN, closed=False))
        without = _sweeps(memory, 0)
        write(server.url, memory, history(CLOSED_PER_TASK * tasks, closed=True))
        with_history = _sweeps(memory, CLOSED_PER_TASK * tasks)
        memory.close()
    return [without, with_history]


def _sweeps(memory: AuditMemory, closed: int) -> Sweeps:
    memory.hold_lease("bench", 3600)
    reconciler = Reconciler(memory, lease_seconds=15)
    took = []
    for _ in range(SWEEPS):
        began = time.perf_counter()
        reconciler.sweep()
        took.append(time.perf_counter() - began)
    tracemalloc.start()
    reconciler.sweep()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Sweeps(closed=closed, open=OPEN, took=took, peak=peak)


def history(count: int, *, closed: bool) -> Iterator[AuditRow]:
    """The rows of so many invocations, two each where they are closed."""
    ending = Ending(reason=Reason.RETURNED, result_hash=_HASH)
    for number in range(count):
        identity = Identity(
            request_id=str(ULID()),
            skill_id="bench.noop",
            version="1.0.0",
            caller_persona="bench@1",
            tenant_id=f"00000000-0000-4000-8000-{number % TENANTS:012d}",
            trace_id=_HASH[:32],
            task_id=f"task-{number}",
            worker="bench",
        )
        yield skill_invoked_started(identity, _HASH, ts=_TS)
        if closed:
            yield skill_invoked_completed(identity, ending, 1, ts=_TS)


def write(url: str, memory: Any, rows: Iterator[AuditRow]) -> None:
    """Many emits in one round trip: making a history one by one would take minutes."""
    connection = client(url)
    memory.check()
    sha = connection.script_load(memory.script)
    connection.sadd("audit:tenants", *(f"00000000-0000-4000-8000-{n:012d}" for n in range(TENANTS)))
    batch: list[AuditRow] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            _send(connection, memory, sha, batch)
            batch = []
    _send(connection, memory, sha, batch)


def _send(connection: Any, memory: Any, sha: str, batch: Sequence[AuditRow]) -> None:
    pipeline = connection.pipeline(transaction=False)
    for row in batch:
        pipeline.evalsha(sha, *memory.command(row))
    pipeline.execute()


def report(measured: Sequence[Sweeps]) -> str:
    rows = [
        [
            f"{sweeps.open:,} open beside {sweeps.closed:,} closed",
            millis(percentile(sweeps.took, 50)),
            millis(max(sweeps.took)),
            mebibytes(sweeps.peak),
        ]
        for sweeps in measured
    ]
    return table(("one sweep of the reconciler", "p50 ms", "max ms", "peak MiB"), rows)


def raw(measured: Sequence[Sweeps]) -> list[dict[str, Any]]:
    """Every sample, in seconds and bytes."""
    return [asdict(sweeps) for sweeps in measured]
