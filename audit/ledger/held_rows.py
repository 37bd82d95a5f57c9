"""The rows to be held against leaves: those of a memory, and those of the entry bundles.

Both are :class:`audit.ledger.alignment.Rows`. Each row is hashed once, from its stored bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

from audit.ledger.alignment import Slot
from audit.ledger.invocations import request_id_of, ts_of
from audit.ledger.leaves import Chunk
from audit.ledger.tiles import WIDTH, Tile, tile_of

_PAGE: Final = 4 * WIDTH
_KIND_AT: Final = 9  # behind {"kind":"


class StoredEntry(Protocol):
    """A stored row as a memory gives it: where it stands, and its bytes, unread."""

    @property
    def position(self) -> str: ...

    @property
    def stored(self) -> bytes: ...

    @property
    def foreign(self) -> bool: ...


class SealedMemory(Protocol):
    """What a verification wants of a memory; nothing in it writes."""

    def tenants(self) -> list[str]: ...

    def entries(self, tenant_id: str, after: str | None, limit: int) -> Sequence[StoredEntry]: ...

    def sealed(self, tenant_id: str) -> bytes | None: ...

    def sealed_position(self, tenant_id: str) -> str | None: ...

    def trimmed(self, tenant_id: str) -> str | None: ...

    def leases(self, workers: Collection[str]) -> set[str]: ...


def slot_of(index: int, stored: bytes, hashed: bytes | None, position: str | None = None) -> Slot:
    kind = stored[_KIND_AT : stored.find(b'"', _KIND_AT)].decode("ascii", "replace")
    return Slot(index, hashed, position, request_id_of(stored), kind, ts_of(stored))


class MemoryRows:
    """A tenant's rows in a memory, read in pages."""

    def __init__(self, memory: SealedMemory, tenant_id: str) -> None:
        self._memory = memory
        self._tenant_id = tenant_id
        self._entries: list[StoredEntry] = []
        self._hashes: list[bytes | None] = []
        self._at = 0
        self._last: str | None = None
        self._all = False
        self.count = 0

    @property
    def ended(self) -> bool:
        return not self._fill(1)

    def hashes(self, count: int) -> list[bytes | None]:
        self._fill(count)
        return self._hashes[self._at : self._at + count]

    def positions(self, count: int) -> list[str]:
        """Of the next rows, those that :meth:`hashes` has told."""
        return [entry.position for entry in self._entries[self._at : self._at + count]]

    def skip(self, count: int) -> None:
        self._at += count
        self.count += count

    def take(self, count: int) -> list[Slot]:
        self._fill(count)
        taken = [
            Slot(self.count + at, hashed, entry.position)
            if entry.foreign
            else slot_of(self.count + at, entry.stored, hashed, entry.position)
            for at, (entry, hashed) in enumerate(self._next(count))
        ]
        self.skip(len(taken))
        return taken

    def pages(self) -> Iterator[tuple[list[StoredEntry], list[bytes | None]]]:
        """What is left, page by page: rows and their hashes."""
        while self._fill(1):
            page = self._entries[self._at :], self._hashes[self._at :]
            self.skip(len(page[0]))
            yield page

    def _next(self, count: int) -> Iterator[tuple[StoredEntry, bytes | None]]:
        end = self._at + count
        return zip(self._entries[self._at : end], self._hashes[self._at : end], strict=True)

    def _fill(self, count: int) -> bool:
        """Whether so many are here, after reading what it takes."""
        while len(self._entries) - self._at < count and not self._all:
            page = self._memory.entries(self._tenant_id, self._last, _PAGE)
            self._all = not page
            if page:
                self._last = page[-1].position
                self._entries = [*self._entries[self._at :], *page]
                new = [sha256(b"\x00" + entry.stored).digest() for entry in page]
                self._hashes = [*self._hashes[self._at :], *new]
                self._at = 0
        return len(self._entries) - self._at >= count


class BundleRows:
    """The rows of the bundles, as they are read."""

    def __init__(self) -> None:
        self._waiting: list[Slot] = []
        self._count = 0
        self.ended = False

    def push(self, chunk: Chunk) -> None:
        """The rows of the next bundle."""
        for row, hashed in zip(chunk.rows, chunk.hashes, strict=True):
            slot = Slot(self._count, None) if not row else slot_of(self._count, row, hashed)
            self._waiting.append(slot)
            self._count += 1

    def pass_over(self, count: int) -> None:
        """So many are right and need not come here."""
        self._count += count

    def hashes(self, count: int) -> list[bytes | None]:
        return [slot.hash for slot in self._waiting[:count]]

    def skip(self, count: int) -> None:
        del self._waiting[:count]

    def take(self, count: int) -> list[Slot]:
        taken = self._waiting[:count]
        del self._waiting[:count]
        return taken


class Positions:
    """Where the memory had the rows of a log: files beside its bundles, ours and not C2SP's.

    Nothing is proven by them; they only tell where to look.
    """

    def __init__(self, root: Path, size: int) -> None:
        self._root = root
        self._size = size

    def of_bundle(self, index: int) -> list[str]:
        """Of the rows of a bundle; empty where that is not known."""
        bundle = tile_of(None, index, self._size)
        for tile in (bundle, bundle.full()):
            if (lines := self._lines(tile)) is not None:
                return lines[: bundle.width]
        return []

    @property
    def are_there(self) -> bool:
        """Whether there are any."""
        return (self._root / "positions").is_dir()

    def of_bundle_as_it_is(self, start: int) -> list[str] | None:
        """All lines of the bundle that begins there; ``None`` if no file is there to be read."""
        bundle = tile_of(None, start // WIDTH, self._size)
        lines = self._lines(bundle)
        if lines is None and not bundle.is_full:
            whole = self._lines(bundle.full())
            return None if whole is None else whole[: bundle.width]
        return lines

    def of_row(self, index: int) -> str | None:
        lines = self.of_bundle(index // WIDTH) if index < self._size else []
        return lines[index % WIDTH] if index % WIDTH < len(lines) else None

    def _lines(self, tile: Tile) -> list[str] | None:
        path = self._root / tile.to_path().replace("tile/entries/", "positions/", 1)
        try:
            return path.read_text(encoding="ascii").split()
        except (OSError, ValueError):
            return None


def slots_of(chunk: Chunk, positions: Positions) -> Iterator[Slot]:
    """The leaves of a chunk, with what is known of their rows."""
    places = positions.of_bundle(chunk.start // WIDTH)
    for at, leaf in enumerate(chunk.leaves):
        position = places[at] if at < len(places) else None
        row = chunk.rows[at] if at < len(chunk.rows) and chunk.hashes[at] == leaf else None
        if row:
            yield slot_of(chunk.start + at, row, leaf, position)
        else:
            yield Slot(chunk.start + at, leaf, position)
