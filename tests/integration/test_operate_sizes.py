"""The figures of docs/operate.md: measured again, on fewer rows, and reckoned on as it says."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
import redis

from audit import AuditMemory
from audit.embedded import EmbeddedServer
from audit.ledger.keys import LedgerKeys
from audit.ledger.sealer import Sealer
from tests.integration.stack import ROOT
from tests.support import TENANT, checked_memory, completed, make_identity, started

PAGE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
INVOCATIONS = 4_000
#: Measured on Valkey 9.1; Redis, and an older Valkey, keep a stream and a hash a little otherwise.
WITHIN = 0.15
DAY = 86_400


@dataclass(frozen=True)
class Measured:
    """Bytes, as the page's first four lines have them."""

    row: float
    in_memory: float
    trimmed: float
    in_ledger: float


def figures() -> list[int]:
    """The numbers of the first table, in its order; commas part two of one line."""
    table = PAGE.partition("| what | bytes |")[2].partition("\n\n")[0]
    return [int(n) for n in re.findall(r"\| ([\d]+) \|$", table, re.M)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    ledger = tmp_path_factory.mktemp("sizes") / "ledger"
    with EmbeddedServer() as server, checked_memory(server.url, timeout=30) as memory:
        row = fill(memory, INVOCATIONS) / (2 * INVOCATIONS)
        in_memory = held(server, "rows", "requests") / (2 * INVOCATIONS)
        keys = LedgerKeys.generate("host.example")
        sealed = Sealer(memory, ledger, origin="host.example", load_keys=lambda: keys).round()
        assert sealed is not None
        on_disk = sum(path.stat().st_size for path in ledger.rglob("*") if path.is_file())
        trim_all_but_one(memory)
        trimmed = held(server, "requests") / INVOCATIONS
        yield Measured(row, in_memory, trimmed, on_disk / sealed.rows)


def held(server: EmbeddedServer, *names: str) -> int:
    """Bytes that the server holds under these keys of the tenant."""
    with redis.Redis.from_url(server.url) as client:
        keys = [f"audit:{{{TENANT}}}:{name}" for name in names]
        return sum(int(client.memory_usage(key, samples=0) or 0) for key in keys)


def trim_all_but_one(memory: AuditMemory) -> None:
    last = make_identity()
    memory.emit(started(last))
    before = memory.last_position(TENANT)
    memory.emit(completed(last))
    assert before is not None
    assert memory.trim(TENANT, before) == 2 * INVOCATIONS


def fill(memory: AuditMemory, invocations: int) -> int:
    """Rows as a worker writes them; their bytes in all."""
    size = 0
    for _ in range(invocations):
        identity = make_identity(
            skill_id="obs.queue-depth",
            trace_id=secrets.token_hex(16),
            task_id=str(uuid4()),
            worker="01M8NW4DBAZDXRAW119KDKF8XF",
        )
        for row in (started(identity), completed(identity)):
            memory.emit(row)
            size += len(row.to_bytes())
    return size


def test_a_row_takes_what_the_page_says(measured: Measured) -> None:
    """Its bytes; in the server; what stays of its invocation; in the ledger's folder."""
    row, in_memory, trimmed, in_ledger = figures()[:4]
    assert measured.row == pytest.approx(row, rel=0.05)
    assert measured.in_memory == pytest.approx(in_memory, rel=WITHIN)
    assert measured.trimmed == pytest.approx(trimmed, rel=WITHIN)
    assert measured.in_ledger == pytest.approx(in_ledger, rel=WITHIN)


def test_the_growth_is_reckoned_from_them() -> None:
    """Each line of the second table is its first column times the figures above, to a tenth."""
    _, in_memory, trimmed, in_ledger = figures()[:4]
    lines = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", PAGE, re.M)
    assert len(lines) == 3
    for line in lines:
        rate = int(line[0])
        rows = 2 * rate * DAY
        told = [number(text) for text in line[1:]]
        wanted = [rows, rows * in_memory, rows * in_ledger, rate * DAY * trimmed]
        assert told == pytest.approx(wanted, rel=0.06)


def number(text: str) -> float:
    digits, _, unit = text.replace(",", "").partition(" ")
    return float(digits) * {"": 1, "million": 1e6, "MB": 1e6, "GB": 1e9}[unit]
