"""What tells of a log, beside the memory, that it was longer once than its newest checkpoint says.

Whoever takes a log back together with the memory's copy, and the meta log as well, leaves only
checkpoints that are signed and fit. What may tell is what else lies in the folder: files of tiles
beyond the checkpoint, and the places at which the meta log had the logs' checkpoints.

A crash leaves files beyond a checkpoint, too: those of one seal, which are written before the swap.
Of a tenant's log they hold the next rows of the memory, byte for byte, at most as many as one
checkpoint adds, for the sealer has them from there, and what is not sealed is never trimmed. Of the
meta log they hold each log once. A place in the meta log is written behind the swap that covers it,
so no crash leaves one ahead. What is more than that is a finding; so is a memory that has lost rows
which a sealer had read already.

What is guaranteed: this only reads; a sealer at work beside it is no finding, for the memory is
asked last, and again where it has gone on; and a copy that nobody holds against the memory is not
looked at, because in one that was made live the rest may be newer than what was copied first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.ledger.checkpoint import MOST
from audit.ledger.claims import log_of, read_claim
from audit.ledger.finding import META, Finding, Kind, Source
from audit.ledger.held_rows import SealedMemory
from audit.ledger.merkle import leaf_hash
from audit.ledger.sources import Sources
from audit.ledger.text import decode_decimal
from audit.ledger.tiles import Tile
from audit.ledger.tiles_beyond import entries_beyond, leaves_beyond, tiles_beyond

#: How often is looked again where a sealer has gone on meanwhile; then it is at work.
_TRIES: Final = 10
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class _Trace:
    """What tells.

    Attributes:
        text: what it is.
        end: how long the log was at least.
    """

    text: str
    end: int


def of_tenant(sources: Sources, log: str, tenant: str | None) -> Iterator[Finding]:
    """What tells that a tenant's log was longer, or its memory."""
    if sources.memory is None or sources.ledger is None or tenant is None:
        return
    memory, folder = sources.memory, sources.ledger / log
    for _ in range(_TRIES):
        note, position = memory.sealed(tenant), memory.sealed_position(tenant)
        size = _size(sources, log, note)
        if size is None or position is None or not (held := tiles_beyond(folder, size)):
            return
        trace = _too_far(held, size) or _not_of_memory(memory, tenant, position, folder, held, size)
        if memory.sealed(tenant) == note:
            yield from [_finding(Source.LEDGER, log, tenant, size, trace)] if trace else []
            return


def of_meta(sources: Sources) -> Iterator[Finding]:
    """What tells that the meta log was longer."""
    if sources.memory is None or sources.ledger is None:
        return
    for _ in range(_TRIES):
        note = sources.memory.sealed(META)
        if (size := _size(sources, META, note)) is None:
            return
        trace = _hinted(sources.ledger, size) or _left_in_meta(sources.ledger / META, size)
        if sources.memory.sealed(META) == note:
            yield from [_finding(Source.META, META, None, size, trace)] if trace else []
            return


def _size(sources: Sources, log: str, note: bytes | None) -> int | None:
    """Of a log, by a checkpoint of the memory that a known key has signed."""
    if note is None:
        return None
    claim = read_claim(note, log, Source.MEMORY, "", sources.trust).claim
    return claim.size if claim is not None and claim.trusted else None


def _too_far(held: list[Tile], size: int) -> _Trace | None:
    """More than one checkpoint adds."""
    end = max(tile.end for tile in held)
    text = "files go further beyond its checkpoint than one seal does"
    return _Trace(text, end) if end > size + MOST else None


def _not_of_memory(
    memory: SealedMemory, tenant: str, position: str, folder: Path, held: list[Tile], size: int
) -> _Trace | None:
    """Other rows than those behind the sealed ones, or more of them."""
    told = [(tile, leaves_beyond(folder, tile, size)) for tile in held]
    end = max((max(tile.start, size) + len(leaves) for tile, leaves in told), default=size)
    waiting = _waiting(memory, tenant, position, end - size)  # asked behind the files
    for tile, leaves in told:
        first = max(tile.start, size) - size
        if leaves != waiting[first : first + len(leaves)]:
            text = "files beyond its checkpoint hold rows that the memory does not have there"
            return _Trace(text, end)
    return None


def _waiting(memory: SealedMemory, tenant: str, after: str, count: int) -> list[bytes]:
    """The leaves that the memory's next rows would be."""
    found: list[bytes] = []
    while len(found) < count:
        page = memory.entries(tenant, after, min(_PAGE, count - len(found)))
        if not page:
            break
        found += [leaf_hash(entry.stored) for entry in page]
        after = page[-1].position
    return found


def _hinted(ledger: Path, size: int) -> _Trace | None:
    """A log that was gathered where the meta log does not reach; whichever."""
    hints = [
        (hint, path.parent.name)
        for path in ledger.glob("*/gathered")
        if (hint := _hint(path)) is not None
    ]
    if not hints or (last := max(hints))[0] < size:
        return None
    return _Trace(f"the log {last[1]} was gathered at {last[0]:,}", last[0] + 1)


def _hint(path: Path) -> int | None:
    try:
        return decode_decimal(path.read_bytes().decode("ascii", "replace"))
    except OSError:
        return None


def _left_in_meta(meta: Path, size: int) -> _Trace | None:
    held = tiles_beyond(meta, size)
    if not held or (trace := _too_far(held, size)) is not None:
        return trace if held else None
    for tile in held:
        logs = [log_of(entry) for entry in entries_beyond(meta, tile, size)]
        if len(set(logs)) < len(logs):
            text = "a file beyond its checkpoint has two checkpoints of one log"
            return _Trace(text, tile.end)
    return None


def _finding(source: Source, log: str, tenant: str | None, size: int, trace: _Trace) -> Finding:
    text = f"{trace.text}: somebody took it back, or the memory has lost what it had"
    return Finding(
        kind=Kind.ROLLBACK, source=source, log=log, tenant=tenant,
        index=size, count=max(1, trace.end - size), text=text,
    )  # fmt: skip
