"""What tests of the sealer share: a memory whose rows cost nothing, a look at what is sealed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import redis

from audit.embedded import EmbeddedServer
from audit.ledger.checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.ledger.claims import Trust
from audit.ledger.finding import Kind, Report, Source
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.held_rows import SealedMemory
from audit.ledger.keys import LedgerKeys
from audit.ledger.sealer import Sealer, SealRound
from audit.ledger.sources import Sources
from audit.ledger.verifier import verify
from audit.memory import open_memory
from audit.memory.base import AuditMemory, Entry
from audit.testing import InMemory
from tests.ledger_writer import just_now, rows_of
from tests.naive_merkle import NaiveTree
from tests.support import TENANT

PREFIX: Final = "host.example/logs"
KEYS: Final = LedgerKeys.generate("host.example", random=lambda size: b"k" * size)
OTHER: Final = "00000000-0000-4000-8000-000000000002"
#: Whose rows are real ones (:func:`two_tenants`).
NEIGHBOUR: Final = "550e8400-e29b-41d4-a716-446655440001"


class Rows(InMemory):
    """A memory whose rows are numbered and cost nothing; what is swapped is real."""

    def __init__(self, **counts: int) -> None:
        super().__init__()
        self.counts = {TENANT: 0, **counts}

    def tenants(self) -> list[str]:
        return sorted(t for t, count in self.counts.items() if count)

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        self._answer()
        start = int(after.partition("-")[0]) if after else 0
        end = min(self.counts[tenant_id], start + limit)
        return [Entry(f"{n}-0", row_of(tenant_id, n)) for n in range(start + 1, end + 1)]

    def last_position(self, tenant_id: str) -> str | None:
        count = self.counts[tenant_id]
        return f"{count}-0" if count else None


def row_of(tenant_id: str, number: int) -> bytes:
    return f"row {number} of {tenant_id}".encode()


@contextmanager
def raw_memory() -> Iterator[tuple[AuditMemory, Callable[..., None]]]:
    """A memory on a server, and what puts an entry into it past the emit."""
    with (
        EmbeddedServer() as server,
        closing(open_memory(server.url, timeout=10)) as memory,
        redis.Redis.from_url(server.url) as client,
    ):

        def put(stored: bytes, tenant_id: str = TENANT, field: str = "row") -> None:
            client.xadd(f"audit:{{{tenant_id}}}:rows", {field: stored})

        yield memory, put


def raw(memory: AuditMemory, tenant_id: str = TENANT) -> list[bytes]:
    """What a memory has of a tenant, rows or not."""
    return [entry.stored for entry in memory.entries(tenant_id, None, 10_000)]


def make(memory: AuditMemory, directory: Path, **options: Any) -> Sealer:
    options.setdefault("load_keys", lambda: KEYS)
    return Sealer(memory, directory, origin=PREFIX, **options)


def seal(memory: AuditMemory, directory: Path, **options: Any) -> SealRound:
    """One round of a new sealer, as after a start of the keeper."""
    did = make(memory, directory, **options).round()
    assert did is not None
    return did


def begin_meta(memory: InMemory, directory: Path) -> None:
    """The first round of a keeper that was stopped before it sealed a row that is there."""
    entries = memory.entries
    memory.entries = lambda *asked: entries(*asked) if asked[2] == 1 else []  # type: ignore[method-assign]
    assert seal(memory, directory).rows == 0
    memory.entries = entries  # type: ignore[method-assign]


def log_of(tenant_id: str) -> str:
    return origin_of(PREFIX, tenant_id, KEYS.secret).rpartition("/")[2]


def verified(raw: bytes | None, origin: str, keys: LedgerKeys = KEYS) -> Checkpoint:
    assert raw is not None
    return open_checkpoint(raw, origin, keys.verifiers_of(origin)).checkpoint


def contents(memory: AuditMemory, directory: Path, tenant_id: str) -> dict[str, Any]:
    """What a log holds, after everything about it was checked."""
    log = LedgerFolder(directory).log(log_of(tenant_id))
    note = memory.sealed(tenant_id)
    assert log.checkpoint() == note
    checkpoint = verified(note, origin_of(PREFIX, tenant_id, KEYS.secret))
    rows = list(log.tiles.rows(checkpoint.size))
    assert NaiveTree(rows).mth(0, len(rows)) == checkpoint.root
    positions = log.last_positions(checkpoint.size, 256)
    return {"note": note, "rows": rows, "positions": positions}


def meta_of(memory: AuditMemory, directory: Path) -> list[bytes]:
    """The entries of the meta log, after everything about it was checked."""
    meta = LedgerFolder(directory).log(META)
    note = memory.sealed(META)
    assert meta.checkpoint() == note
    checkpoint = verified(note, f"{PREFIX}/{META}")
    entries = list(meta.tiles.rows(checkpoint.size))
    assert NaiveTree(entries).mth(0, len(entries)) == checkpoint.root
    return entries


def copy(source: Path, target: Path) -> None:
    """By links: no file of a ledger is ever changed in place."""
    shutil.copytree(source, target, copy_function=os.link)


def files(directory: Path) -> dict[str, bytes | int]:
    """What each file holds; one that is shared with a copy is told by its number alone."""
    found: dict[str, bytes | int] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            shared = path.stat().st_nlink > 1
            name = path.relative_to(directory).as_posix()
            found[name] = path.stat().st_ino if shared else path.read_bytes()
    return found


# --- what is said of a ledger ---------------------------------------------------------------------


def two_tenants(directory: Path) -> InMemory:
    """A memory whose real rows, 4 and 6, then 4 more of the second, were sealed in two rounds."""
    memory = InMemory()
    emit(memory, NEIGHBOUR, 4, 1)
    emit(memory, TENANT, 6, 2)
    seal(memory, directory)
    emit(memory, TENANT, 4, 3)
    seal(memory, directory)
    return memory


def emit(memory: InMemory, tenant_id: str, count: int, seed: int) -> None:
    for row in just_now(rows_of(tenant_id, count, Random(seed))):
        memory.emit(row)


def check(memory: SealedMemory | None, directory: Path | None, **more: Any) -> Report:
    sources: dict[str, Any] = {"secret": KEYS.secret, "pause": lambda seconds: None, **more}
    trust = Trust(KEYS.verifiers, PREFIX)
    return verify(Sources(trust=trust, memory=memory, ledger=directory, **sources))


def kinds(report: Report) -> list[tuple[Kind, Source, str]]:
    return [(f.kind, f.source, f.log) for f in report.findings()]
