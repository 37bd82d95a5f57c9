"""Which rows of a log were pruned, so that their bundles may be missing.

A row ``audit.pruned`` alone says nothing: whoever writes to the memory can write one. It carries a
note, a checkpoint of the very rows that are gone, signed under an origin of its own. So only who
has the ledger's keys can say that rows were pruned, and no checkpoint of a log passes for it.

What is guaranteed: :func:`pruned_rows` counts only what a sealed row says whose note is signed by a
known key, speaks of the rows and root that the row names, and of the tree that the level tiles
make up; and never what a row says that is itself among those.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from audit.errors import LedgerError, TileMissingError
from audit.ledger.checkpoint import Checkpoint, open_checkpoint
from audit.ledger.keys import LedgerKeys
from audit.ledger.merkle import root
from audit.ledger.note_key import Algorithm, VerifierKey
from audit.ledger.tile_directory import TileDirectory
from audit.ledger.tiles import WIDTH, tile_of

#: What the stored bytes of such a row begin with.
BEGINS: Final = b'{"kind":"audit.pruned"'


def pruned_origin(origin: str) -> str:
    """The origin of the notes that say what was pruned from the log of that origin."""
    return f"{origin}/pruned"


def sign_pruned(origin: str, rows: int, top: bytes, keys: LedgerKeys) -> str:
    """The note of an ``audit.pruned`` row: the log's first rows, so many, with that root."""
    name = pruned_origin(origin)
    return Checkpoint(name, rows, top).sign(*keys.signers_of(name)).to_bytes().decode()


def is_sound(payload: Mapping[str, Any], origin: str, keys: Iterable[VerifierKey]) -> bool:
    """Whether a key of the ledger has signed what the payload of an ``audit.pruned`` row says."""
    name = pruned_origin(origin)
    logs = [key.renamed(name) for key in keys if key.algorithm is Algorithm.ED25519]
    try:
        note = str(payload["note"]).encode()
        said = open_checkpoint(note, name, logs).checkpoint
        told = payload["first_index"], payload["rows"], payload["root"]
    except (LedgerError, KeyError, UnicodeError):
        return False
    return told == (0, said.size, said.root.hex())


def pruned_rows(tiles: TileDirectory, size: int, origin: str, keys: Iterable[VerifierKey]) -> int:
    """How many rows, from the first on, a log of ``size`` rows says are pruned; 0 for none.

    Reads bundles from the newest on until one says so.

    Raises:
        TileError: a bundle or tile is damaged.
    """
    known = tuple(keys)
    for index in range(-(-size // WIDTH) - 1, -1, -1):
        try:
            entries = tiles.entries(tile_of(None, index, size))
        except TileMissingError:
            continue
        for at in range(len(entries) - 1, -1, -1):
            rows = _told(entries[at], origin, known)
            if 0 < rows <= index * WIDTH + at and _is_root(entries[at], tiles, rows, size):
                return rows
    return 0


def _told(stored: bytes, origin: str, keys: tuple[VerifierKey, ...]) -> int:
    if not stored.startswith(BEGINS):
        return 0
    try:
        payload = json.loads(stored)["payload"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    if not isinstance(payload, dict) or not is_sound(payload, origin, keys):
        return 0
    return int(payload["rows"])


def _is_root(stored: bytes, tiles: TileDirectory, rows: int, size: int) -> bool:
    told = json.loads(stored)["payload"]["root"]
    return bool(root(rows, tiles.node_reader(size)).hex() == told)
