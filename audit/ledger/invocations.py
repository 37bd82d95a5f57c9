"""What the sealed rows of one log say of its invocations: none is left open, none is told twice.

Rows come in sealed order. Which invocations are open is told here, and whether that is for too long
by whoever knows the time and the leases. Bodies that are not there (pruned, lost) say
nothing, so an invocation that started before such a gap is not called overdue for it.

What is guaranteed: memory holds what is open, and beyond that stays flat.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from audit.ledger.spill import Spill
from audit.row import COMPLETED, STARTED

_REQUEST: Final = b',"request_id":"'
_WORKER: Final = b',"worker":"'
_KIND: Final = b'{"kind":"'
_STARTED: Final = b'{"kind":"%b"' % STARTED.encode()
_COMPLETED: Final = b'{"kind":"%b"' % COMPLETED.encode()
#: ``,"ts":"2026-11-29T21:45:38.123456Z"}``
_TAIL: Final = 36
_SEEN: Final = struct.Struct(">qQ")


@dataclass(frozen=True, slots=True)
class Glance:
    """What is wanted of a row's bytes; empty where they are no row."""

    kind: str = ""
    request_id: str = ""
    ts: str = ""
    worker: str = ""


def glance(stored: bytes) -> Glance:
    """Kind, request_id and time of a row, whatever the spelling of its JSON."""
    try:
        document = json.loads(stored)
        found = document["kind"], document["payload"]["request_id"], document["ts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Glance()
    meta = document.get("meta")
    worker = meta.get("worker") if isinstance(meta, dict) else None
    told = *found, worker if isinstance(worker, str) else ""
    return Glance(*told) if all(isinstance(part, str) for part in told) else Glance()


def is_row(stored: bytes) -> bool:
    """Whether these bytes look like a row of anything."""
    quick = stored.startswith(_KIND) and stored[-_TAIL:-29] == b',"ts":"' and _REQUEST in stored
    return quick or bool(glance(stored).kind)


def request_id_of(stored: bytes) -> str | None:
    """The request_id of a row, read from its canonical bytes; ``None`` if there is none.

    A quote inside a JSON string is escaped, so the text searched for can only be the key itself.
    """
    at = stored.find(_REQUEST)
    if at >= 0:
        at += len(_REQUEST)
        return stored[at : stored.find(b'"', at)].decode("ascii", "replace")
    return glance(stored).request_id or None


def ts_of(stored: bytes) -> str:
    """The time of a row, read from its canonical bytes; empty if there is none."""
    if stored[-_TAIL:-29] == b',"ts":"':
        return stored[-29:-2].decode("ascii", "replace")
    return glance(stored).ts


@dataclass(frozen=True, slots=True)
class Opened:
    """A started row that no completed one has followed."""

    index: int
    request_id: str
    ts: str
    worker: str

    @property
    def since(self) -> float:
        """When it started, in seconds."""
        return seconds_of(self.ts)


class Invocations:
    """The invocations of one log."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[int, bytes, bytes]] = {}
        self._seen = Spill(_SEEN.size)
        self._newest = b""
        self._gap = -1

    def add(self, index: int, stored: bytes) -> bool:
        """The next sealed row; whether it is one."""
        at = stored.find(_REQUEST) + len(_REQUEST)
        if at < len(_REQUEST) or not stored.startswith(_KIND) or stored[-_TAIL:-29] != b',"ts":"':
            return self._add_slowly(index, stored)
        self._newest = max(self._newest, stored[-29:-2])
        if stored.startswith(_STARTED):
            request_id = stored[at : stored.find(b'"', at)]
            self._started(index, request_id, stored[-29:-2], _worker(stored))
        elif stored.startswith(_COMPLETED):
            self._completed(index, stored[at : stored.find(b'"', at)])
        return True

    def add_unsealed(self, stored: bytes) -> None:
        """A row behind the sealed ones: it can close what was sealed open."""
        if stored.startswith(_COMPLETED) and (request_id := request_id_of(stored)):
            self.close_one(request_id)

    def close_one(self, request_id: str) -> None:
        """It has a completed row, sealed or not."""
        self._open.pop(request_id.encode(), None)

    def unseen(self, index: int) -> None:
        """The body of that row is not there, or is not the sealed one."""
        self._gap = index

    @property
    def newest(self) -> float:
        """The time of the newest row, in seconds."""
        return seconds_of(self._newest.decode("utf-8", "replace"))

    def opened(self) -> Iterator[Opened]:
        """What is open."""
        for request_id, (index, *told) in self._open.items():
            if index > self._gap:
                ts, worker = (part.decode("utf-8", "replace") for part in told)
                yield Opened(index, request_id.decode("ascii", "replace"), ts, worker)

    def repeated(self) -> list[int]:
        """The indexes of rows that may be the second of their kind and invocation, and the first.

        Few: beside those that are, only some whose 64-bit hashes are equal by chance. Whoever asks
        reads these rows again and compares them.
        """
        found: set[int] = set()
        last_hash, last_index = None, 0
        for record in self._seen:
            value, index = _SEEN.unpack(record)
            if value == last_hash:
                found |= {last_index, index}
            last_hash, last_index = value, index
        return sorted(found)

    def close(self) -> None:
        self._seen.close()

    def _started(self, index: int, request_id: bytes, ts: bytes, worker: bytes) -> None:
        self._seen.add(_SEEN.pack(hash(b"s" + request_id), index))
        self._open.setdefault(request_id, (index, ts, worker))

    def _completed(self, index: int, request_id: bytes) -> None:
        self._seen.add(_SEEN.pack(hash(b"c" + request_id), index))
        self._open.pop(request_id, None)

    def _add_slowly(self, index: int, stored: bytes) -> bool:
        row = glance(stored)
        if not row.kind:
            return False
        self._newest = max(self._newest, row.ts.encode())
        if row.kind == STARTED:
            self._started(index, row.request_id.encode(), row.ts.encode(), row.worker.encode())
        elif row.kind == COMPLETED:
            self._completed(index, row.request_id.encode())
        return True


def _worker(stored: bytes) -> bytes:
    """Who ran it; a name with escapes in it is found nowhere among the leases."""
    at = stored.find(_WORKER)
    return stored[at + len(_WORKER) : stored.find(b'"', at + len(_WORKER))] if at >= 0 else b""


def seconds_of(ts: str) -> float:
    """A row's time in seconds; 0 where it is none."""
    try:
        return datetime.fromisoformat(ts).timestamp()
    except ValueError:
        return 0.0
