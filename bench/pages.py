"""The audit's pages over HTTP, from a real Flower with its login: what somebody waits for.

Each page is asked for in turns with all others, over one connection that stays open, as a browser's
does. Scripts and pictures of a page are not asked for.
"""

from __future__ import annotations

import http.client
import re
import socket
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import psutil  # type: ignore[import-untyped]

from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from audit.memory.base import RowFilter
from audit.memory.newest import Cursor
from bench.history import Known, request_id_of
from bench.look import Look
from bench.processes import ANSWER_SECONDS, BenchError, Program

#: Askings of each page, for each round.
PER_ROUND: Final = 3
LOGIN: Final = "bench:bench"
_HEADERS: Final = {"Authorization": f"Basic {b64encode(LOGIN.encode()).decode()}"}
_LOOKED: Final = re.compile(r"Looked at ([\d,]+) entr")


def measure(url: str, memory: AuditMemory, known: Known, *, rows: int, rounds: int) -> list[Look]:
    """Every page of a memory at ``url``, which has so many rows."""
    with _flower(url) as (connection, flower):
        paths = _paths(memory, known)
        looked = {what: _looked(_page(connection, path)) for what, path in paths.items()}
        took: dict[str, list[float]] = {what: [] for what in paths}
        cpu = dict.fromkeys(paths, 0.0)
        for _ in range(PER_ROUND * rounds):
            for what, path in paths.items():
                used, began = _used(flower), time.perf_counter()
                _page(connection, path)
                took[what].append(time.perf_counter() - began)
                cpu[what] += (_used(flower) - used) / (PER_ROUND * rounds)
    return [Look(what=w, rows=rows, took=took[w], looked=looked[w], cpu=cpu[w]) for w in paths]


def _used(flower: psutil.Process) -> float:
    """Seconds of CPU, in hundredths: many of them make a mean."""
    times = flower.cpu_times()
    return float(times.user + times.system)


def _paths(memory: AuditMemory, known: Known) -> dict[str, str]:
    """The address of each page by its name."""
    deep = _behind(memory, request_id_of(known.number // 2))
    lists: dict[str, dict[str, str]] = {
        "no filter": {},
        "skill": {"skill": "skills.family_3.skill_3"},
        "outcome panic": {"outcome": "panic"},
        "persona and tenant": {"persona": "persona-3@0.4.1", "tenant": known.tenant_id},
        "trace": {"trace": f"{1:032x}"},
        "task": {"task": known.task_id},
        "request": {"request": known.plain},
        "one that never matches": {"skill": "no.such.skill"},
        "no filter, half way down": {"cursor": deep},
        "one that never matches, half way down": {"skill": "no.such.skill", "cursor": deep},
    }
    return {
        "GET /audit": "/audit",
        "GET /audit, one tenant": f"/audit?tenant={known.tenant_id}",
        "GET /audit, the part read again": "/audit?part=1",
        **{f"GET /audit/list, {w}": f"/audit/list?{urlencode(q)}" for w, q in lists.items()},
        "GET /audit/invocation/ID": f"/audit/invocation/{known.plain}",
        "GET /audit/invocation/ID, with children": f"/audit/invocation/{known.parent}",
        "GET /audit/invocation/ID, the very first": f"/audit/invocation/{request_id_of(1)}",
    }


def _behind(memory: AuditMemory, request_id: str) -> str:
    (row, *_) = memory.page(RowFilter(request_id=request_id), most=1, look=10).rows
    return str(Cursor.behind(row.tenant_id, str(row.position)))


def _looked(page: str) -> int:
    found = _LOOKED.search(page)
    if found is None:
        raise BenchError("a page does not say how far it looked")
    return int(found[1].replace(",", ""))


def _page(connection: http.client.HTTPConnection, path: str) -> str:
    connection.request("GET", path, headers=_HEADERS)
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        raise BenchError(f"{path} answers {answer.status}")
    return text


@contextmanager
def _flower(memory_url: str) -> Iterator[tuple[http.client.HTTPConnection, psutil.Process]]:
    with tempfile.TemporaryDirectory() as directory, EmbeddedServer() as broker:
        port = _free_port()
        words = (memory_url, broker.url, str(port), LOGIN)
        program = Program("bench.flower", *words, log=Path(directory) / "flower.log")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            _wait(program, connection)
            yield connection, psutil.Process(program.pid)
        finally:
            connection.close()
            program.end()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait(program: Program, connection: http.client.HTTPConnection) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        program.check()
        try:
            _page(connection, "/healthcheck")
            return
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise BenchError("Flower does not answer") from None
            time.sleep(0.1)
