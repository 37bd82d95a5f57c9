"""What a row ``audit.pruned`` excuses: that the first rows of its log have no bytes any more.

Whoever can write to the memory can write such a row, and it is sealed like any other. So it carries
a note that only the ledger's keys can sign: that so many rows, with that root, were to go. What is
guaranteed: a row without such a note excuses nothing, nor one that would excuse its own absence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from audit.errors import CheckpointError, LedgerError
from audit.ledger.checkpoint import Checkpoint, open_checkpoint
from audit.ledger.claims import Trust
from audit.ledger.note import Note

_ROW: Final = b'{"kind":"audit.pruned"'
#: What the note's origin has behind the log's own.
SUFFIX: Final = "/pruned"


@dataclass(frozen=True, slots=True)
class Pruned:
    """That the first rows of a log were removed: how many, and the root they have."""

    rows: int
    root: bytes


def pruned_of(index: int, stored: bytes, log: str, trust: Trust) -> Pruned | None:
    """What the sealed row at ``index`` of ``log`` excuses; ``None`` for most rows."""
    if not stored.startswith(_ROW):
        return None
    try:
        payload = json.loads(stored)["payload"]
        signed = _signed(payload["note"].encode(), log, trust)
        told = payload["first_index"], payload["rows"], payload["root"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, LedgerError):
        return None
    if told != (0, signed.size, signed.root.hex()) or not 0 < signed.size <= index:
        return None
    return Pruned(signed.size, signed.root)


def _signed(raw: bytes, log: str, trust: Trust) -> Checkpoint:
    origin = Checkpoint.parse(Note.parse(raw).text).origin
    of_log = origin.removesuffix(SUFFIX)
    expected = f"{trust.prefix}/{log}" if trust.prefix else of_log
    if origin != expected + SUFFIX or of_log.rpartition("/")[2] != log:
        raise CheckpointError("the note is of another log")
    return open_checkpoint(raw, origin, trust.of_log(origin)).checkpoint
