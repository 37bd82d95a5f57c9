"""A writer of rows, as a process: ``python -m bench.writer HOW URL COUNT``.

It prepares everything, says ``"ready"``, emits when told to go, and answers with what each emit
took. ``memory`` emits through the audit's memory; ``floor`` has the same connection, the same bytes
and a script that appends them and does nothing else: the least that this server would take.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

from redis.connection import Connection

from audit.invocation import new_request_id
from audit.memory import open_memory
from audit.row import (
    AuditRow,
    Ending,
    Identity,
    Reason,
    skill_invoked_completed,
    skill_invoked_started,
    timestamp,
)

TENANTS: Final = tuple(f"550e8400-e29b-41d4-a716-44665544{number:04d}" for number in range(8))
HASH: Final = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

#: Rows before the clock starts: two for every tenant, so that none is new any more.
WARM_UP: Final = 2 * len(TENANTS)

APPEND: Final = "return redis.call('XADD', KEYS[1], '*', 'row', ARGV[1])"

Emit = Callable[[AuditRow], object]


def rows() -> Iterator[AuditRow]:
    """Started and completed rows in turn, the invocations in turn of each tenant."""
    while True:
        for tenant in TENANTS:
            identity = Identity(
                request_id=new_request_id(),
                skill_id="obs.triage-alert",
                version="1.0.0",
                caller_persona="cuo-bench@1.0.0",
                tenant_id=tenant,
                trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
                task_id="7f1f4c1e-93a1-4f0f-9d0c-1f3f6d1f7a10",
                worker=new_request_id(),
            )
            ts = timestamp(datetime.now(UTC))
            yield skill_invoked_started(identity, HASH, ts=ts)
            ending = Ending(reason=Reason.RETURNED, result_hash=HASH)
            yield skill_invoked_completed(identity, ending, 12, ts=ts)


def open_floor(url: str) -> Emit:
    parts = urlsplit(url)
    connection = Connection(
        host=str(parts.hostname), port=parts.port or 6379, db=int(parts.path[1:]), protocol=2
    )
    connection.connect()

    def ask(*command: Any) -> Any:
        connection.send_command(*command)
        return connection.read_response()

    sha = ask("SCRIPT", "LOAD", APPEND)
    return lambda row: ask("EVALSHA", sha, 1, f"floor:{{{row.tenant_id}}}", row.to_bytes())


HOW: Final[dict[str, Callable[[str], Emit]]] = {
    "memory": lambda url: open_memory(url, timeout=10).emit,
    "floor": open_floor,
}


def measure(emit: Emit, prepared: list[AuditRow]) -> dict[str, Any]:
    """Emit the rows: when the first began and the last ended, and the seconds of each."""
    took, clock = [], time.perf_counter
    first = time.monotonic()
    for row in prepared:
        began = clock()
        emit(row)
        took.append(clock() - began)
    return {"first": first, "last": time.monotonic(), "took": took}


def main(how: str, url: str, count: str) -> None:
    emit = HOW[how](url)
    endless = rows()
    for row in islice(endless, WARM_UP):
        emit(row)
    prepared = list(islice(endless, int(count)))
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    print(json.dumps(measure(emit, prepared)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
