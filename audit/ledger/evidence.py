"""What the meta log says of the other logs: their checkpoints, in the order they were sealed.

They are sorted by log and size, through a file where there are many, so that each log can be held
against all of its own in one pass. What is guaranteed: only entries that are the sealed ones count,
and, of files that the meta log's checkpoint does not cover, those that a known key has signed: a
sealer writes them behind the seal that they speak of, so no log is ever older than they say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from audit.errors import TileError
from audit.ledger.checkpoint import Checkpoint
from audit.ledger.claims import Claim, Claimed, Trust, log_of, read_claim, size_of
from audit.ledger.finding import Source
from audit.ledger.leaves import Chunk
from audit.ledger.note import Note
from audit.ledger.spill import Spill
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH, tile_of
from audit.ledger.tiles_beyond import entries_beyond, tiles_beyond

_RECORD: Final = struct.Struct(">16sQQ32s")


class Evidence:
    """The checkpoints that a meta log has gathered.

    Attributes:
        newest: of each log the size, the root, and the place in the meta log.
        beyond: of each log the newest one that lies behind the end of the meta log.
        cosigned: how many of the meta log's entries a witness has seen.
    """

    def __init__(self) -> None:
        self.newest: dict[str, tuple[int, bytes, int]] = {}
        self.beyond: dict[str, Claimed] = {}
        self.cosigned = 0
        self._spill = Spill(_RECORD.size)
        self._records: Iterator[bytes] = iter(())
        self._next: bytes | None = None

    def gather(self, chunk: Chunk) -> None:
        """The entries of one bundle of the meta log."""
        for at, leaf in enumerate(chunk.leaves):
            row = chunk.rows[at] if at < len(chunk.rows) else None
            if not row or chunk.hashes[at] != leaf or (log := log_of(row)) is None:
                continue
            checkpoint = Checkpoint.parse(Note.parse(row).text)
            size, root, index = checkpoint.size, checkpoint.root, chunk.start + at
            self._spill.add(_RECORD.pack(digest_of(log), size, index, root))
            if log not in self.newest or self.newest[log][0] <= size:
                self.newest[log] = size, root, index

    def look_beyond(self, meta: Path, size: int, trust: Trust) -> None:
        """What files hold that a meta log of that size does not have: a crash's, or a rollback's.

        Whatever they are of, a known key has signed them.
        """
        newest: dict[str, tuple[int, bytes]] = {}
        for tile in tiles_beyond(meta, size):
            for row in entries_beyond(meta, tile, size):
                log, said = log_of(row), size_of(row)
                if log is not None and said > newest.get(log, (-1, b""))[0]:
                    newest[log] = said, row
        name = "a checkpoint behind the end of the meta log"
        for log, (_, row) in newest.items():
            claimed = read_claim(row, log, Source.META, name, trust)
            if claimed.claim is not None and claimed.claim.trusted:
                self.beyond[log] = claimed

    def sort(self) -> None:
        """Everything was gathered."""
        self._records = iter(self._spill)
        self._next = next(self._records, None)

    def close(self) -> None:
        self._spill.close()

    def claim(self, log: str, meta: Path, size: int, trust: Trust) -> Claimed | None:
        """The newest checkpoint of a log that the meta log, of that size, has."""
        if log not in self.newest:
            return None
        index = self.newest[log][2]
        try:
            entries = TileDirectory(meta).entries(tile_of(None, index // WIDTH, size))
        except TileError:
            return None
        name = f"the checkpoint at {index:,} of the meta log"
        return read_claim(entries[index % WIDTH], log, Source.META, name, trust)

    def of(self, log: str, most: int) -> Iterator[Claim]:
        """The claims about a log; logs are asked for in the order of their digests."""
        wanted = digest_of(log)
        while self._next is not None:
            digest, size, index, root = _RECORD.unpack(self._next)
            if digest > wanted:
                return
            self._next = next(self._records, None)
            if digest == wanted and size <= most:
                name = f"the checkpoint at {index:,} of the meta log"
                yield Claim(Source.META, name, size, root, cosigned=index < self.cosigned)


def digest_of(log: str) -> bytes:
    """What logs are sorted by here."""
    return sha256(log.encode()).digest()[:16]
