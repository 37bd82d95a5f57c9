"""The tamper suite: everything that can be done to a sealed ledger is found, and located.

Each kind of :data:`TAMPERS` is applied at random places, seeded, to a ledger of 5,000 rows and
3 tenants; the findings must be exactly the expected ones. ``LEDGER_TAMPER_TRIES`` sets how many
tries there are (40 unless it does; every kind has its turn at least once).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from audit.ledger.claims import Trust
from audit.ledger.finding import Finding, Kind, Report, Source, Verdict
from audit.ledger.invocations import request_id_of
from audit.ledger.merkle import leaf_hash
from audit.ledger.note_key import SignerKey
from audit.ledger.sources import Sources
from audit.ledger.subject import Limits
from audit.ledger.tiles import WIDTH, tile_of
from audit.ledger.verifier import verify
from tests.ledger_writer import (
    META,
    PREFIX,
    TENANTS,
    PlainEntry,
    PlainLedger,
    PlainMemory,
    fill,
    rows_of,
    write_tree,
)

SIZES = dict(zip(TENANTS, (3_000, 1_400, 600), strict=True))
SIGNER = SignerKey.generate(PREFIX, random=lambda count: b"k" * count)
STRANGER = SignerKey.generate(PREFIX, random=lambda count: b"x" * count)
TRIES = int(os.environ.get("LEDGER_TAMPER_TRIES", "40"))
#: As of the newest row there is; what some log has open at its end is none too old then.
LIMITS = Limits(open_for=25.0, now=datetime(2026, 11, 29, 21, 0, 30, tzinfo=UTC).timestamp)


@dataclass
class World:
    """A ledger and a memory of its own for one try, and what they were like before the end."""

    ledger: PlainLedger
    memory: PlainMemory
    early: Path
    random: Random
    tenant: str
    given: tuple[bytes, ...] = ()

    @property
    def folder(self) -> Path:
        return self.ledger.root / self.ledger.log(self.tenant)

    @property
    def size(self) -> int:
        return len(self.ledger.entries[self.tenant])

    @property
    def rows(self) -> list[PlainEntry]:
        return self.memory.rows[self.tenant]

    @property
    def sealed(self) -> list[bytes]:
        return self.ledger.entries[self.tenant]

    def somewhere(self, first: int = 0, last: int = 0) -> int:
        return self.random.randrange(first, self.size - last)

    def expect(
        self, kind: Kind, source: Source, index: int | None, count: int = 1, named: bool = True
    ) -> Finding:
        """A finding, without its text and position."""
        request_id = None
        if named and index is not None:
            request_id = request_id_of(self.sealed[index])
        return Finding(
            kind=kind, source=source, log=self.ledger.log(self.tenant), tenant=self.tenant,
            index=index, count=count, request_id=request_id,
        )  # fmt: skip

    def verify(self, *, memory: bool = True, files: bool = True) -> Report:
        return verify(
            Sources(
                trust=Trust((SIGNER.verifier,), PREFIX),
                ledger=self.ledger.root if files else None,
                memory=self.memory if memory else None,
                given=self.given,
                limits=LIMITS,
                pause=lambda seconds: None,
            )
        )

    # --- what tampering needs ---------------------------------------------------------------

    def tile(self, level: int | None, index: int) -> Path:
        return self.folder / tile_of(level, index, self.size).to_path()

    def rewrite(self, rows: list[bytes], *, tiles: bool = False) -> None:
        """Put other rows into the bundles, in the files that are there, and tiles if wanted."""
        for index in range(-(-self.size // WIDTH)):
            last = index == (self.size - 1) // WIDTH
            part = rows[index * WIDTH : None if last else (index + 1) * WIDTH]
            raw = b"".join(len(row).to_bytes(2, "big") + row for row in part)
            self.tile(None, index).write_bytes(raw)
        if tiles:
            shutil.rmtree(self.folder / "tile")
            write_tree(self.folder, rows, 0)


def edited(stored: bytes, random: Random) -> bytes:
    """The row with another digit in its trace_id or its hashes."""
    at = stored.index(b'"trace_id":"') + 12 + random.randrange(32)
    return stored[:at] + (b"0" if stored[at : at + 1] != b"0" else b"1") + stored[at + 1 :]


def stranger(world: World) -> bytes:
    """A row that was never sealed."""
    (row, _) = rows_of(world.tenant, 2, world.random)
    return row.to_bytes()


# --- what is done to the memory -------------------------------------------------------------------


def memory_edit(world: World) -> list[Finding]:
    i = world.somewhere()
    world.rows[i] = replace(world.rows[i], stored=edited(world.rows[i].stored, world.random))
    return [world.expect(Kind.EDITED, Source.MEMORY, i)]


def memory_envelope(world: World) -> list[Finding]:
    i = world.somewhere()
    stored = world.rows[i].stored.replace(b'"attempt":0', b'"attempt":7')
    world.rows[i] = replace(world.rows[i], stored=stored)
    return [world.expect(Kind.EDITED, Source.MEMORY, i)]


def memory_several_edits(world: World) -> list[Finding]:
    places = sorted(world.random.sample(range(world.size), 5))
    for i in places:
        world.rows[i] = replace(world.rows[i], stored=edited(world.rows[i].stored, world.random))
    return [world.expect(Kind.EDITED, Source.MEMORY, i) for i in places]


def memory_delete(world: World) -> list[Finding]:
    i = world.somewhere(last=1)
    del world.rows[i]
    return [world.expect(Kind.DELETED, Source.MEMORY, i)]


def memory_delete_many(world: World) -> list[Finding]:
    count = world.random.randrange(2, 400)
    i = world.somewhere(last=count + 1)
    del world.rows[i : i + count]
    return [world.expect(Kind.DELETED, Source.MEMORY, i, count)]


def memory_insert(world: World) -> list[Finding]:
    i = world.somewhere()
    world.rows.insert(i, PlainEntry("7-7", stranger(world)))
    found = world.expect(Kind.INSERTED, Source.MEMORY, i)
    return [replace(found, request_id=request_id_of(world.rows[i].stored))]


def memory_swap(world: World) -> list[Finding]:
    i, j = sorted(world.random.sample(range(world.size), 2))
    world.rows[i], world.rows[j] = world.rows[j], world.rows[i]
    return [world.expect(Kind.REORDERED, Source.MEMORY, at) for at in (i, j)]


def memory_move(world: World) -> list[Finding]:
    i, j = world.random.sample(range(world.size), 2)
    if abs(i - j) < 2:
        i, j = 5, 50
    world.rows.insert(j, world.rows.pop(i))
    return [world.expect(Kind.REORDERED, Source.MEMORY, i)]


def memory_cut(world: World) -> list[Finding]:
    i = world.somewhere()
    del world.rows[i:]
    return [world.expect(Kind.CUT, Source.MEMORY, i, world.size - i)]


def memory_last(world: World) -> list[Finding]:
    """The last sealed row, with unsealed ones behind it."""
    i = world.size - 1
    del world.rows[i]
    return [world.expect(Kind.CUT, Source.MEMORY, i)]


def memory_edit_last(world: World) -> list[Finding]:
    i = world.size - 1
    world.rows[i] = replace(world.rows[i], stored=edited(world.rows[i].stored, world.random))
    return [world.expect(Kind.EDITED, Source.MEMORY, i)]


def memory_gone(world: World) -> list[Finding]:
    world.rows.clear()
    return [world.expect(Kind.CUT, Source.MEMORY, 0, world.size)]


# --- what is done to the files --------------------------------------------------------------------


def bundle_edit(world: World) -> list[Finding]:
    rows, i = list(world.sealed), world.somewhere()
    rows[i] = edited(rows[i], world.random)
    world.rewrite(rows)
    return [world.expect(Kind.EDITED, Source.LEDGER, i)]


def bundle_delete(world: World) -> list[Finding]:
    rows, i = list(world.sealed), world.somewhere(last=1)
    del rows[i]
    world.rewrite(rows)
    return [world.expect(Kind.DELETED, Source.LEDGER, i)]


def bundle_insert(world: World) -> list[Finding]:
    rows, i = list(world.sealed), world.somewhere()
    rows.insert(i, stranger(world))
    world.rewrite(rows)
    found = world.expect(Kind.INSERTED, Source.LEDGER, i)
    return [replace(found, request_id=request_id_of(rows[i]))]


def bundle_swap(world: World) -> list[Finding]:
    rows = list(world.sealed)
    i, j = sorted(world.random.sample(range(world.size), 2))
    rows[i], rows[j] = rows[j], rows[i]
    world.rewrite(rows)
    return [world.expect(Kind.REORDERED, Source.LEDGER, at) for at in (i, j)]


def all_files_edit(world: World) -> list[Finding]:
    """Bundle and every tile above it, as whoever owns the disk would do."""
    rows, i = list(world.sealed), world.somewhere()
    rows[i] = edited(rows[i], world.random)
    world.rewrite(rows, tiles=True)
    return [world.expect(Kind.EDITED, Source.LEDGER, i)]


def all_files_delete_and_insert(world: World) -> list[Finding]:
    """One row less and one more, with every tile; the size stays."""
    rows, i = list(world.sealed), world.somewhere(last=300)
    j = i + world.random.randrange(10, 290)
    del rows[i]
    rows.insert(j, stranger(world))
    world.rewrite(rows, tiles=True)
    inserted = world.expect(Kind.INSERTED, Source.LEDGER, j)
    return [
        world.expect(Kind.DELETED, Source.LEDGER, i),
        replace(inserted, request_id=request_id_of(rows[j])),
    ]


def tile_altered(world: World) -> list[Finding]:
    i = world.somewhere()
    path = world.tile(0, i // WIDTH)
    raw = bytearray(path.read_bytes())
    raw[i % WIDTH * 32 + world.random.randrange(32)] ^= 0x10
    path.write_bytes(raw)
    return [world.expect(Kind.ALTERED, Source.LEDGER, i, named=False)]


def upper_tile_altered(world: World) -> list[Finding]:
    place = world.random.randrange(world.size // WIDTH)
    path = world.tile(1, 0)
    raw = bytearray(path.read_bytes())
    raw[place * 32 + world.random.randrange(32)] ^= 0x10
    path.write_bytes(raw)
    return [world.expect(Kind.ALTERED, Source.LEDGER, place * WIDTH, named=False)]


def missing(world: World, level: int | None) -> list[Finding]:
    tile = tile_of(level, world.somewhere() // WIDTH if not level else 0, world.size)
    (world.folder / tile.to_path()).unlink()
    count = tile.width if not level else world.size // WIDTH * WIDTH
    return [world.expect(Kind.MISSING, Source.LEDGER, tile.start, count, named=False)]


def bundle_malformed(world: World) -> list[Finding]:
    i = world.somewhere()
    rows = world.sealed[i // WIDTH * WIDTH : i]
    path = world.tile(None, i // WIDTH)
    at = sum(2 + len(row) for row in rows)
    path.write_bytes(path.read_bytes()[: at + world.random.randrange(1, 200)])
    count = tile_of(None, i // WIDTH, world.size).width - i % WIDTH
    return [world.expect(Kind.MALFORMED, Source.LEDGER, i, count, named=False)]


def checkpoint_missing(world: World) -> list[Finding]:
    (world.folder / "checkpoint").unlink()
    return [world.expect(Kind.MISSING, Source.LEDGER, None, named=False)]


# --- what is done to checkpoints ------------------------------------------------------------------


def rollback_file(world: World) -> list[Finding]:
    size = world.random.randrange(1, world.size)
    (world.folder / "checkpoint").write_bytes(world.ledger.note(world.tenant, size))
    return [world.expect(Kind.ROLLBACK, Source.LEDGER, size, named=False)]


def rollback_memory(world: World) -> list[Finding]:
    size = world.random.randrange(1, world.size)
    world.memory.newest[world.tenant] = world.ledger.note(world.tenant, size)
    return [world.expect(Kind.ROLLBACK, Source.MEMORY, size, named=False)]


def rollback_both(world: World) -> list[Finding]:
    """Only the meta log remembers."""
    return [*rollback_file(world), *rollback_memory(world)]


def rollback_given(world: World) -> list[Finding]:
    """Only a checkpoint that somebody kept remembers: everything was put back to an older state."""
    world.given = (world.ledger.note(world.tenant),)
    held = early_state(world, meta=True)
    size = world.size
    world.memory.newest[world.tenant] = (world.folder / "checkpoint").read_bytes()
    world.memory.newest[META] = (world.ledger.root / META / "checkpoint").read_bytes()
    return [
        world.expect(Kind.ROLLBACK, Source.LEDGER, held, named=False),
        world.expect(Kind.ROLLBACK, Source.MEMORY, held, named=False),
        world.expect(Kind.CUT, Source.LEDGER, held, size - held, named=False),
    ]


def early_state(world: World, *, meta: bool = False) -> int:
    """Put the files of a log back to what they were; how many rows they have then."""
    for name in [world.ledger.log(world.tenant), *([META] if meta else [])]:
        shutil.rmtree(world.ledger.root / name)
        shutil.copytree(world.early / name, world.ledger.root / name)
    return int((world.folder / "checkpoint").read_text().splitlines()[1])


def files_cut(world: World) -> list[Finding]:
    held = early_state(world)
    return [
        world.expect(Kind.ROLLBACK, Source.LEDGER, held, named=False),
        world.expect(Kind.CUT, Source.LEDGER, held, world.size - held, named=False),
    ]


def fork_memory(world: World) -> list[Finding]:
    other = world.ledger.sign(world.tenant, world.size, leaf_hash(b"other"))
    world.memory.newest[world.tenant] = other
    return [world.expect(Kind.FORK, Source.MEMORY, world.size, named=False)]


def fork_given(world: World) -> list[Finding]:
    size = world.random.randrange(1, world.size)
    world.given = (world.ledger.sign(world.tenant, size, leaf_hash(b"other")),)
    return [world.expect(Kind.FORK, Source.GIVEN, size, named=False)]


def fork_meta(world: World) -> list[Finding]:
    size = world.random.randrange(1, world.size)
    note = world.ledger.sign(world.tenant, size, leaf_hash(b"other"))
    entries = [note, *world.ledger.entries[META]]
    shutil.rmtree(world.ledger.root / META)
    world.ledger.entries[META] = []
    world.ledger.append(META, entries)
    return [world.expect(Kind.FORK, Source.META, size, named=False)]


def wrong_key(world: World) -> list[Finding]:
    world.ledger.signer = STRANGER
    (world.folder / "checkpoint").write_bytes(world.ledger.note(world.tenant))
    return [world.expect(Kind.UNTRUSTED, Source.LEDGER, world.size, named=False)]


def wrong_key_and_rows(world: World) -> list[Finding]:
    """A whole ledger of somebody else's, in the place of ours."""
    rows, i = list(world.sealed), world.somewhere()
    rows[i] = edited(rows[i], world.random)
    world.rewrite(rows, tiles=True)
    world.ledger.signer, world.ledger.entries[world.tenant] = STRANGER, rows
    (world.folder / "checkpoint").write_bytes(world.ledger.note(world.tenant))
    return [
        world.expect(Kind.UNTRUSTED, Source.LEDGER, world.size, named=False),
        world.expect(Kind.EDITED, Source.LEDGER, i),
    ]


# --- what is sealed as it is ----------------------------------------------------------------------


def seal_again(world: World, rows: list[PlainEntry]) -> None:
    world.memory.rows[world.tenant] = rows
    for name in (world.ledger.log(world.tenant), META):
        shutil.rmtree(world.ledger.root / name)
    world.ledger.entries[world.tenant] = []
    others = {t: len(world.ledger.entries[t]) for t in SIZES if t != world.tenant}
    world.ledger.entries[META] = []
    world.ledger.round({**others, world.tenant: len(rows)})


def overdue(world: World) -> list[Finding]:
    world.tenant = world.random.choice(TENANTS[:2])
    rows = list(world.rows)
    i = next(
        at
        for at in range(world.random.randrange(400), len(rows))
        if b"invoked_started" in rows[at].stored
    )
    request_id = request_id_of(rows[i].stored)
    ends = [r for r in rows[i + 1 :] if request_id_of(r.stored) == request_id]
    seal_again(world, [r for r in rows if r not in ends])
    return [world.expect(Kind.OVERDUE, Source.LEDGER, i)]


def duplicate(world: World) -> list[Finding]:
    rows = list(world.rows)
    first, then = sorted(world.random.sample(range(len(rows)), 2))
    rows.insert(then, PlainEntry(f"{then}-9", edited(rows[first].stored, world.random)))
    seal_again(world, rows)
    return [world.expect(Kind.DUPLICATE, Source.LEDGER, then)]


TAMPERS: tuple[Callable[[World], list[Finding]], ...] = (
    memory_edit, memory_envelope, memory_several_edits, memory_delete, memory_delete_many,
    memory_insert, memory_swap, memory_move, memory_cut, memory_last, memory_edit_last, memory_gone,
    bundle_edit, bundle_delete, bundle_insert, bundle_swap, all_files_edit,
    all_files_delete_and_insert, tile_altered, upper_tile_altered,
    lambda world: missing(world, None), lambda world: missing(world, 0),
    lambda world: missing(world, 1), bundle_malformed, checkpoint_missing,
    rollback_file, rollback_memory, rollback_both, rollback_given, files_cut,
    fork_memory, fork_given, fork_meta, wrong_key, wrong_key_and_rows, overdue, duplicate,
)  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The ledger that is tampered with: three rounds of sealing, some rows unsealed."""
    root, random = tmp_path_factory.mktemp("ledger"), Random(5)
    memory = PlainMemory()
    ledger = PlainLedger(root / "now", memory, SIGNER)
    for tenant, count in SIZES.items():
        fill(memory, tenant, rows_of(tenant, count, random))
    ledger.round({t: n // 3 for t, n in SIZES.items()})
    ledger.round({t: n * 4 // 5 for t, n in SIZES.items()})
    shutil.copytree(root / "now", root / "early")
    ledger.round({t: n - 7 for t, n in SIZES.items()})
    ledger.finish()
    return World(ledger, memory, root / "early", random, TENANTS[0])


def copied(original: World, to: Path, seed: int) -> World:
    shutil.copytree(original.ledger.root, to)
    memory = PlainMemory(
        {tenant: list(rows) for tenant, rows in original.memory.rows.items()},
        dict(original.memory.newest),
        dict(original.memory.places),
    )
    ledger = PlainLedger(to, memory, SIGNER)
    ledger.entries = {name: list(rows) for name, rows in original.ledger.entries.items()}
    random = Random(seed)
    return World(ledger, memory, original.early, random, random.choice(TENANTS))


def told(findings: Iterator[Finding] | list[Finding]) -> list[Any]:
    """What is compared of findings: all but their texts and positions."""
    return sorted(
        (f.kind, f.source, f.log, f.tenant, f.index, f.count, f.request_id) for f in findings
    )


@pytest.mark.parametrize("number", range(TRIES))
def test_whatever_is_done_to_a_ledger_is_found_and_located(
    original: World, tmp_path: Path, number: int
) -> None:
    """Exactly the expected findings, with their places, and no others."""
    world = copied(original, tmp_path / "ledger", number)
    expected = TAMPERS[number % len(TAMPERS)](world)
    report = world.verify()
    assert told(report.findings()) == told(expected)
    assert report.verdict is Verdict.WRONG


@pytest.mark.parametrize(("memory", "files"), [(True, True), (True, False), (False, True)])
def test_nothing_is_found_in_an_untouched_ledger(
    original: World, memory: bool, files: bool
) -> None:
    """From the memory, from the files, and from both; every sealed row was checked."""
    report = original.verify(memory=memory, files=files)
    assert list(report.findings()) == []
    assert report.verdict is Verdict.RIGHT
    logs = {log.tenant: log for log in report.logs if log.tenant}
    assert {t: log.checked for t, log in logs.items()} == {t: n - 7 for t, n in SIZES.items()}
    assert {log.unsealed for log in logs.values()} == ({7} if memory else {0})


def test_verifying_writes_nothing(original: World) -> None:
    """No file of the ledger changes, none is made."""

    def state() -> list[Any]:
        paths = sorted(original.ledger.root.rglob("*"))
        return [(path, path.stat().st_mtime_ns, path.stat().st_ino) for path in paths]

    before = state()
    original.verify()
    assert state() == before
