"""audit/ledger/archive.py: who reads does not notice what was trimmed from the memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from click.testing import CliRunner

from audit.cli import audit
from audit.embedded import EmbeddedServer
from audit.errors import LedgerDamagedError
from audit.ledger.archive import PAGE, Archive, read_through
from audit.ledger.folder import LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.pruning import Pruner
from audit.ledger.sealer import Sealer
from audit.memory import AuditMemory, open_memory
from audit.memory.base import Entry, RowFilter, order_of
from audit.row import COMPLETED, STARTED, AuditRow, Reason
from audit.testing import InMemory
from tests.support import TENANT, completed, make_ending, make_identity, started
from tests.witness import FakeWitness

OTHER: Final = "00000000-0000-4000-8000-000000000002"
KEYS: Final = LedgerKeys.generate("host.example", random=lambda size: b"k" * size)


def seal(memory: AuditMemory, folder: Path) -> Archive:
    Sealer(memory, folder, origin="host.example", load_keys=lambda: KEYS, worker="k").round()
    return Archive(LedgerFolder(folder))


def some_rows(count: int) -> Iterator[AuditRow]:
    """Pairs of two tenants, with skills, endings and texts that differ."""
    for number in range(count):
        identity = make_identity(
            tenant_id=[TENANT, OTHER][number % 3 == 0],
            skill_id=["alerts.triage", 'sch"ön'][number % 2],
            task_id=f"task-{number % 7}",
        )
        ts = f"2026-01-01T{number // 60 % 24:02}:{number % 60:02}:00.000000Z"
        reason = [Reason.RETURNED, Reason.RAISED][number % 5 == 0]
        yield started(identity, ts=ts)
        yield completed(identity, make_ending(reason, "alerts.triage"), ts=ts)


def written(memories: list[InMemory], count: int) -> list[AuditRow]:
    rows = list(some_rows(count))
    for row in rows:
        for memory in memories:
            memory.emit(row)
    return rows


def given(rows: Iterator[AuditRow]) -> list[tuple[bytes, str | None]]:
    return [(row.to_bytes(), row.position) for row in rows]


def filters(rows: list[AuditRow]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {},
        {"tenant_id": TENANT},
        {"tenant_id": "00000000-0000-4000-8000-00000000dead"},
        {"kind": COMPLETED},
        {"skill_id": 'sch"ön'},
        {"skill_id": "alerts.triage", "kind": STARTED},
        {"outcome": "error", "tenant_id": OTHER},
        {"caller_persona": "cuo-cpo@0.4.1"},
        {"task_id": "task-3"},
        {"trace_id": "nothing", "skill_id": "\udcff"},
    ]
    return parts + [{"request_id": rows[at].request_id} for at in (0, 1, 700, -1)]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.99, 1.0])
def test_a_trimmed_memory_reads_as_if_it_were_whole(tmp_path: Path, share: float) -> None:
    """Every filter gives the rows, bytes, order and positions of a memory that nobody trimmed."""
    memory, whole = InMemory(), InMemory()
    rows = written([memory, whole], 700)
    archive = seal(memory, tmp_path)
    written([memory, whole], 5)
    for tenant_id in (TENANT, OTHER):
        places = [str(row.position) for row in whole.rows(tenant_id)][:-12]
        memory.trim(tenant_id, places[int(share * (len(places) - 1))])
    for parts in filters(rows):
        wanted = RowFilter(**parts)
        found = given(read_through(memory, archive, wanted))
        if "tenant_id" in parts or "request_id" in parts:
            assert found == given(whole.select(wanted)), parts
        assert sorted(found) == sorted(given(whole.select(wanted))), parts


def test_since_and_until_hold_in_the_bundles_too(tmp_path: Path) -> None:
    """A time range that begins in the bundles and ends in the memory is whole."""
    memory, whole = InMemory(), InMemory()
    rows = written([memory, whole], 300)
    archive = seal(memory, tmp_path)
    memory.trim(TENANT, "301-0")
    moment = RowFilter(tenant_id=TENANT, since=_at(rows[100]), until=_at(rows[-50]))
    found = given(read_through(memory, archive, moment))
    assert found == given(whole.select(moment))
    assert found


def _at(row: AuditRow) -> datetime:
    return datetime.fromisoformat(row.ts)


class Trimming(InMemory):
    """A memory that loses rows at whatever moment it is asked for some."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.rate = self.chance.choice([0.001, 0.003, 0.02])
        self.armed = False

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        self._lose(tenant_id)
        found = super().entries(tenant_id, after, limit)
        self._lose(tenant_id)
        return found

    def select(self, wanted: RowFilter) -> Iterator[AuditRow]:
        """Row by row, each as it then stands: a row that went meanwhile is not given."""
        for row in list(super().select(wanted)):
            self._lose(str(wanted.tenant_id))
            first = super().entries(str(wanted.tenant_id), None, 1)
            if first and order_of(first[0].position) <= order_of(str(row.position)):
                yield row

    def _lose(self, tenant_id: str) -> None:
        if self.armed and self.chance.random() < self.rate:
            first = super().entries(tenant_id, None, self.chance.choice([1, 30, 600]))
            if first:
                self.trim(tenant_id, first[-1].position)


@pytest.mark.parametrize("seed", range(15))
def test_what_is_trimmed_while_it_is_read_is_read_all_the_same(tmp_path: Path, seed: int) -> None:
    """No row twice, none missing, none out of order, at whatever moment it goes."""
    memory, whole = Trimming(seed), InMemory()
    written([memory, whole], PAGE + 300)
    archive = seal(memory, tmp_path)
    memory.armed = True
    for parts in ({}, {"kind": COMPLETED}, {"outcome": "error"}):
        wanted = RowFilter(tenant_id=TENANT, **parts)
        assert given(read_through(memory, archive, wanted)) == given(whole.select(wanted))


class Late(InMemory):
    """A memory into which something comes right after it said that it has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.then: list[Callable[[], object]] = []

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        found = super().entries(tenant_id, after, limit)
        if not found and self.then:
            self.then.pop()()
        return found


def test_what_is_sealed_while_it_is_read_is_read_once(tmp_path: Path) -> None:
    """A row that is sealed after the memory was found empty is no second one."""
    memory = Late()
    written([memory], 10)
    seal(memory, tmp_path)
    memory.trim(TENANT, "9999-0")

    def come() -> None:
        written([memory], 10)
        seal(memory, tmp_path)

    memory.then = [come]
    archive = Archive(LedgerFolder(tmp_path))
    found = [row.position for row in read_through(memory, archive, RowFilter(tenant_id=TENANT))]
    assert len(found) == len(set(found)) >= 12


class Third(InMemory):
    """A memory that loses everything when it is asked for entries the third time,
    once the count has begun."""

    asked = 3

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        self.asked += 1
        if self.asked == 3:
            self.trim(tenant_id, "9999-0")
        return super().entries(tenant_id, after, limit)


def test_between_two_pages_everything_may_go(tmp_path: Path) -> None:
    """The second page then comes from the bundles, and begins behind the first."""
    memory, whole = Third(), InMemory()
    written([memory, whole], PAGE)
    archive = seal(memory, tmp_path)
    memory.asked = 0
    found = given(read_through(memory, archive, RowFilter(tenant_id=TENANT)))
    assert found == given(whole.rows(TENANT))
    assert memory.asked > 3


def test_a_part_of_the_bundles_is_just_that_part(tmp_path: Path) -> None:
    """From any place to any other: the rows there, wherever bundles begin."""
    memory = InMemory()
    written([memory], 600)
    archive = seal(memory, tmp_path)
    everything = given(memory.rows(TENANT))
    places = [order_of(str(position)) for _, position in everything]
    for at in (0, 1, 254, 255, 256, 257, 511, 512, 513, 767, 768, 790):
        for end in (at, at + 1, max(at, 700), len(places) - 1):
            rows = archive.rows(
                TENANT, RowFilter(), places[at], Entry(str(everything[end][1]), everything[end][0])
            )
            assert given(rows) == everything[at:end]


def test_without_a_ledger_the_memory_is_all_there_is(tmp_path: Path) -> None:
    """A folder in which nothing was sealed adds nothing and takes nothing."""
    memory = InMemory()
    rows = written([memory], 20)
    archive = Archive(LedgerFolder(tmp_path / "none"))
    assert list(read_through(memory, archive, RowFilter())) == rows


def test_damaged_positions_are_told(tmp_path: Path) -> None:
    """A sidecar that lost lines is an error that names the bundle, not fewer rows."""
    memory = InMemory()
    written([memory], 300)
    archive = seal(memory, tmp_path)
    memory.trim(TENANT, "9999-0")
    for path in tmp_path.rglob("positions/000"):
        path.write_text("1-0\n")
    with pytest.raises(LedgerDamagedError, match="tile/entries/000"):
        list(read_through(memory, archive, RowFilter(tenant_id=TENANT)))


def test_what_was_pruned_leaves_the_others(tmp_path: Path) -> None:
    """It is gone, and what comes after it is there, by the keys given or those in the folder."""
    memory, whole = InMemory(), InMemory()
    written([memory, whole], 500)
    archive = seal(memory, tmp_path)
    folder = LedgerFolder(tmp_path)
    pruner = Pruner(
        memory, folder, origin="host.example", keys=KEYS, seal=lambda: seal(memory, tmp_path)
    )
    assert pruner.prune(pruner.plan(TENANT, datetime(2027, 1, 1, tzinfo=UTC))) == 512
    memory.trim(TENANT, "9999-0")
    witness = FakeWitness().key  # a folder's list may name witnesses as well
    for reader in (archive, Archive(folder, (*KEYS.verifiers, witness))):
        found = given(read_through(memory, reader, RowFilter(tenant_id=TENANT)))
        assert found[:-1] == given(whole.rows(TENANT))[512:]
    stranger = LedgerKeys.generate("host.example", random=lambda size: b"z" * size)
    reader = Archive(folder, stranger.verifiers)
    with pytest.raises(LedgerDamagedError, match="missing"):
        list(read_through(memory, reader, RowFilter(tenant_id=TENANT)))


def test_a_bundle_that_nobody_pruned_is_told(tmp_path: Path) -> None:
    """A missing file is no sign that it was pruned: no row is left out in silence."""
    memory = InMemory()
    written([memory], 500)
    archive = seal(memory, tmp_path)
    memory.trim(TENANT, "9999-0")
    (tmp_path / _log_of_tenant(tmp_path) / "tile/entries/000").unlink()
    with pytest.raises(LedgerDamagedError, match="audit verify"):
        list(read_through(memory, archive, RowFilter(tenant_id=TENANT)))


def _log_of_tenant(root: Path) -> str:
    return next(name for name, whose in LedgerFolder(root).tenants().items() if whose == TENANT)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [],
        lambda lines: lines[:-1],
        lambda lines: [*lines, "99999-0"],
        lambda lines: [*lines[:-1], "soon"],
        lambda lines: [lines[0]] + ["99999999999999-0"] * 255,
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [f"{9 * 10**9 + at}-0" for at in range(256)],
        lambda lines: [*lines[:-1], f"{9 * 10**9}-0"],
    ],
)
def test_positions_leave_no_row_out_in_silence(
    tmp_path: Path, change: Callable[[list[str]], list[str]]
) -> None:
    """Missing, malformed, too many, not growing, or beyond where the memory begins: all is told."""
    memory = InMemory()
    written([memory], 300)
    archive = seal(memory, tmp_path)
    last = str(memory.last_position(TENANT))
    memory.trim(TENANT, last)
    path = tmp_path / _log_of_tenant(tmp_path) / "positions/000"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().split())))
    with pytest.raises(LedgerDamagedError, match="audit verify"):
        list(read_through(memory, archive, RowFilter(tenant_id=TENANT)))


def test_positions_that_end_at_the_memorys_row_too_early_are_told(tmp_path: Path) -> None:
    """Another row in the place of the first that the memory still has would hide those between."""
    memory = InMemory()
    written([memory], 100)
    archive = seal(memory, tmp_path)
    last = str(memory.last_position(TENANT))
    memory.trim(TENANT, last)
    path = next((tmp_path / _log_of_tenant(tmp_path)).glob("positions/000.p/*"))
    lines = path.read_text().split()
    forged = [*lines[:5], last, *(f"{9 * 10**9 + at}-0" for at in range(len(lines) - 6))]
    path.write_text("".join(f"{line}\n" for line in forged))
    with pytest.raises(LedgerDamagedError, match="not what the memory has"):
        list(read_through(memory, archive, RowFilter(tenant_id=TENANT)))


def test_a_server_reads_through_as_well(server: EmbeddedServer, tmp_path: Path) -> None:
    """Positions of a server, several bundles, a trim that ends within one."""
    memory = open_memory(server.url)
    for row in some_rows(600):
        memory.emit(row)
    archive = seal(memory, tmp_path)
    before = given(memory.rows(TENANT))
    assert memory.trim(TENANT, str(before[513][1])) == 513
    assert given(read_through(memory, archive, RowFilter(tenant_id=TENANT))) == before
    memory.close()


def test_the_commands_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``list`` and ``show`` print what was trimmed, its very bytes, where a ledger is set."""
    memory = InMemory()
    rows = written([memory], 3)
    seal(memory, tmp_path)
    for tenant_id in (TENANT, OTHER):
        memory.trim(tenant_id, "9999-0")
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    obj = SimpleNamespace(
        app=SimpleNamespace(conf={"audit_ledger_dir": str(tmp_path)}), no_color=False
    )
    for words, wanted in (
        (["list", "--json"], rows),
        (["show", rows[2].request_id, "--json"], rows[2:4]),
    ):
        result = CliRunner().invoke(audit, words, obj=obj)
        assert result.stdout_bytes == b"".join(row.to_bytes() + b"\n" for row in wanted)
