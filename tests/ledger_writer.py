"""A ledger and a memory, made by the plainest code there is, for tests of the verifier.

Nothing of the sealer is in here, so that what the verifier reads was not made by what it mirrors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.ledger.checkpoint import Checkpoint, origin_of
from audit.ledger.cosignature import Cosignature, message
from audit.ledger.merkle import fold, leaf_hash, root
from audit.ledger.note import Note, Signature
from audit.ledger.note_key import Algorithm, SignerKey, VerifierKey
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH, encode_entries, encode_hashes, new_tiles
from audit.row import AuditRow, skill_invoked_completed, skill_invoked_started, timestamp
from tests.support import HASH, make_ending, make_identity

PREFIX = "ledger.example"
SECRET = b"s" * 32
META = "meta"
TENANTS = [f"550e8400-e29b-41d4-a716-44665544000{n}" for n in range(3)]
_PRIVATE = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
WITNESS = VerifierKey(
    "witness.example", _PRIVATE.public_key().public_bytes_raw(), Algorithm.COSIGNATURE
)
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass
class PlainEntry:
    position: str
    stored: bytes
    foreign: bool = False


@dataclass
class PlainMemory:
    """Rows and newest checkpoints of tenants, in lists; whoever tampers edits them.

    ``places`` has the position of each sealed row, for whichever checkpoint is the newest.
    """

    rows: dict[str, list[PlainEntry]] = field(default_factory=dict)
    newest: dict[str, bytes] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)

    def tenants(self) -> list[str]:
        return sorted(self.rows)

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[PlainEntry]:
        rows = self.rows.get(tenant_id, [])
        first = next((i + 1 for i, row in enumerate(rows) if row.position == after), 0)
        return rows[first : first + limit]

    def sealed(self, tenant_id: str) -> bytes | None:
        return self.newest.get(tenant_id)

    def sealed_position(self, tenant_id: str) -> str | None:
        note, places = self.newest.get(tenant_id), self.places.get(tenant_id, [])
        size = int(note.splitlines()[1]) if note else 0
        return places[size - 1] if 0 < size <= len(places) else None

    def trimmed(self, tenant_id: str) -> str | None:
        return self.marks.get(tenant_id)

    def leases(self, workers: Collection[str]) -> set[str]:
        return self.workers & set(workers)

    def trim(self, tenant_id: str, count: int) -> None:
        """Remove the first so many rows, and say so."""
        major, _, minor = self.rows[tenant_id][count - 1].position.partition("-")
        self.marks[tenant_id] = f"{major}-{int(minor) + 1}"
        del self.rows[tenant_id][:count]


class PlainLedger:
    """Seals rows into a folder, in rounds, and tells a memory the newest checkpoints."""

    def __init__(self, root: Path, memory: PlainMemory, signer: SignerKey) -> None:
        self.root, self.memory, self.signer = root, memory, signer
        self.entries: dict[str, list[bytes]] = {}

    def log(self, tenant: str) -> str:
        return META if tenant == META else origin_of(PREFIX, tenant, SECRET).rpartition("/")[2]

    def note(self, tenant: str, size: int | None = None) -> bytes:
        """The signed checkpoint of the first rows."""
        rows = self.entries[tenant][:size]
        return self.sign(tenant, len(rows), tree_root(rows))

    def sign(self, tenant: str, size: int, root_hash: bytes) -> bytes:
        origin = f"{PREFIX}/{self.log(tenant)}"
        return Checkpoint(origin, size, root_hash).sign(self.signer.renamed(origin)).to_bytes()

    def round(self, sizes: dict[str, int]) -> None:
        """Seal each tenant's rows up to a size, then the checkpoints into the meta log."""
        notes = []
        for tenant, size in sizes.items():
            rows = [row.stored for row in self.memory.rows[tenant][:size]]
            self.append(tenant, rows)
            notes.append(self.memory.newest[tenant])
        self.append(META, [*self.entries.get(META, []), *notes])

    def append(self, tenant: str, rows: list[bytes]) -> None:
        old = self.entries.get(tenant, [])
        self.entries[tenant] = rows
        write_tree(self.root / self.log(tenant), rows, len(old))
        if tenant != META:
            self._positions(tenant, len(old), len(rows))
            self.memory.places[tenant] = [r.position for r in self.memory.rows[tenant][: len(rows)]]
        note = self.note(tenant)
        self.memory.newest[tenant] = note
        (self.root / self.log(tenant) / "checkpoint").write_bytes(note)

    def finish(self) -> None:
        lines = [f"{self.log(t)} {t}\n" for t in self.entries if t != META]
        (self.root / "tenants").write_text("".join(lines))
        (self.root / "keys").write_text(f"{self.signer.verifier.to_text()}\n")

    def _positions(self, tenant: str, old: int, new: int) -> None:
        for tile in new_tiles(old, new):
            if tile.level is None:
                path = (
                    self.root
                    / self.log(tenant)
                    / tile.to_path().replace("tile/entries", "positions")
                )
                path.parent.mkdir(parents=True, exist_ok=True)
                rows = self.memory.rows[tenant][tile.start : tile.start + tile.width]
                path.write_text("".join(f"{row.position}\n" for row in rows))


def write_tree(folder: Path, rows: list[bytes], old: int) -> None:
    directory, hashes = TileDirectory(folder), [leaf_hash(row) for row in rows]
    for tile in new_tiles(old, len(rows)):
        places = range(tile.start, tile.start + tile.width)
        if tile.level is None:
            directory.write(tile, encode_entries(rows[place] for place in places))
        else:
            span = WIDTH**tile.level
            content = encode_hashes([fold(hashes[p * span : (p + 1) * span]) for p in places])
            directory.write(tile, content)


def cosigned(raw: bytes) -> bytes:
    """The same checkpoint with the signature of the witness."""
    note = Note.parse(raw)
    made = Cosignature(1_800_000_000, _PRIVATE.sign(message(1_800_000_000, note.text.encode())))
    line = Signature(WITNESS.name, WITNESS.key_id, made.to_bytes())
    return note.adding(line).to_bytes()


def tree_root(rows: Iterable[bytes]) -> bytes:
    hashes = [leaf_hash(row) for row in rows]

    def node(level: int, index: int) -> bytes:
        return fold(hashes[index << level : (index + 1) << level])

    return root(len(hashes), node)


def rows_of(tenant: str, count: int, random: Random) -> list[AuditRow]:
    """Started and completed rows as a few workers would write them, some 5 ms apart."""
    rows: list[AuditRow] = []
    waiting: list[AuditRow] = []
    while len(rows) < count:
        ts = f"2026-11-29T21:{len(rows) // 6000:02}:{len(rows) % 6000 / 100:09.6f}Z"
        if waiting and (
            len(waiting) > 5 or random.random() < 0.5 or count - len(rows) <= len(waiting)
        ):
            rows.append(_at(waiting.pop(random.randrange(len(waiting))), ts))
            continue
        ulid = "01" + "".join(random.choices(_CROCKFORD, k=24))
        identity = make_identity(request_id=ulid, tenant_id=tenant)
        rows.append(skill_invoked_started(identity, HASH, ts=ts))
        waiting.append(skill_invoked_completed(identity, make_ending(), 12, ts=ts))
    return rows


def just_now(rows: Iterable[AuditRow]) -> list[AuditRow]:
    """The same rows as if written at this moment, so that they have not waited to be sealed."""
    return [_at(row, timestamp(datetime.now(UTC))) for row in rows]


def _at(row: AuditRow, ts: str) -> AuditRow:
    return AuditRow(kind=row.kind, ts=ts, payload=row.payload, meta=row.meta)


def fill(memory: PlainMemory, tenant: str, rows: Iterable[AuditRow]) -> None:
    stored = memory.rows.setdefault(tenant, [])
    for row in rows:
        stored.append(PlainEntry(f"{len(stored) + 1}-0", row.to_bytes()))
