"""Walks through many tenants' entries, newest first, under a budget: what pages are made of.

What is guaranteed, for every memory that reads its pages by this:

* the order is total: by position, the newest first, and by tenant where positions are equal. A
  cursor is a point in it, so it is as short for a thousand tenants as for one;
* no more entries are fetched than the budget, and one of each tenant, whatever the filter;
* what a tenant's rows are fetched in grows while they are looked at, and only then: a thousand
  quiet tenants beside a busy one cost one small read each, all in one round trip.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from audit.errors import RowError
from audit.memory.base import Entry, RowFilter, order_of
from audit.memory.page import Damaged, Page
from audit.row import AuditRow

#: Entries of one tenant fetched in one read.
CHUNK: Final = 500
#: Entries that a tenant which is read on should get at least, for the sake of the round trip.
LEAST: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = int((datetime.max.replace(tzinfo=UTC) - _EPOCH).total_seconds() * 1000) - 1
#: Characters of a tenant's id that a cursor may hold.
LONGEST_NAME: Final = 200
_CURSOR: Final = re.compile(rf"([0-9]{{1,20}})-([0-9]{{1,20}})/(.{{0,{LONGEST_NAME}}})", re.ASCII)
_GREATEST: Final = 2**64 - 1

#: An entry and whose it is.
Found = tuple[str, Entry]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A point in the order of all entries: right behind an entry that was looked at.

    Attributes:
        major, minor: the entry's position.
        tenant_id: whose it is.
    """

    major: int
    minor: int
    tenant_id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError: that is no cursor."""
        found = _CURSOR.fullmatch(text)
        if found is None or max(int(found[1]), int(found[2])) > _GREATEST:
            raise ValueError("that is no cursor: give back what a page says comes next")
        return cls(int(found[1]), int(found[2]), found[3])

    @classmethod
    def behind(cls, tenant_id: str, position: str) -> Self:
        return cls(*order_of(position), tenant_id)

    @classmethod
    def above(cls, major: int) -> Self:
        """Before all tenants' entries whose position begins with ``major`` or less."""
        return cls(max(0, major + 1), 0, "~")

    def __str__(self) -> str:
        return f"{self.position}/{self.tenant_id}"

    @property
    def position(self) -> str:
        return f"{self.major}-{self.minor}"

    def is_passed_by(self, tenant_id: str, position: str) -> bool:
        """Whether an entry comes behind this point: it is older, and still to be looked at."""
        return key_of(tenant_id, position) > (-self.major, -self.minor, self.tenant_id)

    def below(self, tenant_id: str) -> str | None:
        """The position below which a tenant's entries come behind this point; ``None``: all do."""
        if tenant_id <= self.tenant_id:
            return self.position
        if self.minor < _GREATEST:
            return f"{self.major}-{self.minor + 1}"
        return f"{self.major + 1}-0" if self.major < _GREATEST else None


@dataclass(frozen=True, slots=True)
class Read:
    """One read of a tenant's entries: at most ``count``, newest first, behind ``below``.

    ``below`` is exclusive and a position, or ``None``: from the newest.
    """

    tenant_id: str
    below: str | None
    count: int


Fetch = Callable[[Sequence[Read]], Sequence[Sequence[Entry]]]


@dataclass(slots=True)
class _Well:
    """What was fetched of one tenant and not yet looked at."""

    tenant_id: str
    chunk: int
    below: str | None = None
    entries: deque[Entry] = field(default_factory=deque)
    dry: bool = False
    #: How many entries were asked for last.
    asked: int = 0

    def fill(self, count: int, entries: Sequence[Entry]) -> None:
        self.entries.extend(entries)
        self.dry = len(entries) < count
        self.below = entries[-1].position if entries else self.below
        self.chunk = min(CHUNK, 2 * self.chunk)
        self.asked = count

    @property
    def is_low(self) -> bool:
        """Whether half of what was fetched has been looked at, so that the rest soon will be."""
        return not self.dry and 2 * len(self.entries) <= self.asked

    @property
    def key(self) -> tuple[int, int, str]:
        return key_of(self.tenant_id, self.entries[0].position)


class Newest:
    """Entries of many tenants, newest first, until there are none or the budget is used up.

    Args:
        tenants: whose.
        fetch: answers several reads in one round trip.
        most: how many entries are likely enough; sets the size of the first reads.
        look: the budget.
        cursor: where to begin; ``None`` with the newest.
    """

    def __init__(
        self, tenants: Sequence[str], fetch: Fetch, *, most: int, look: int, cursor: Cursor | None
    ) -> None:
        first = _first_chunk(len(tenants), most, look)
        self._wells = [_Well(t, first, cursor.below(t) if cursor else None) for t in tenants]
        self._fetch = fetch
        self._left = look
        #: Those of which something was looked at since they were filled.
        self._used: dict[str, _Well] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing is left: not for the lack of budget."""
        return all(well.dry and not well.entries for well in self._wells)

    def __iter__(self) -> Iterator[Found]:
        self._fill(self._wells)
        heap = [(well.key, well) for well in self._wells if well.entries]
        heapq.heapify(heap)
        while heap:
            well = heap[0][1]
            self._used[well.tenant_id] = well
            yield well.tenant_id, well.entries.popleft()
            if not well.entries and not well.dry:
                if self._left < 1:
                    return
                self._refill(well)
            if well.entries:
                heapq.heapreplace(heap, (well.key, well))
            else:
                heapq.heappop(heap)

    def _refill(self, well: _Well) -> None:
        """Fetch more for ``well``, and in the same round trip for those that will soon need it."""
        others = [other for other in self._used.values() if other is not well and other.is_low]
        # What is left of the budget goes to few of them, rather than an entry to each.
        self._fill([well, *others][: max(1, self._left // LEAST)])

    def _fill(self, wells: Sequence[_Well]) -> None:
        share = max(1, self._left // max(1, len(wells)))
        reads = [Read(well.tenant_id, well.below, min(well.chunk, share)) for well in wells]
        answers = self._fetch(reads) if reads else ()
        for well, read, entries in zip(wells, reads, answers, strict=True):
            well.fill(read.count, entries)
            self._used.pop(well.tenant_id, None)
            self._left -= len(entries)


def _first_chunk(tenants: int, most: int, look: int) -> int:
    """At most half of the budget in all; two if possible, so that one shows that it gets low."""
    least = 2 if 4 * tenants <= look else 1
    return max(least, min(CHUNK, min(most, look // 2) // max(1, tenants)))


def read_page(
    entries: Iterable[Found],
    wanted: RowFilter,
    *,
    most: int,
    look: int,
    clock: Callable[[str], datetime],
    ended: Callable[[], bool],
) -> Page:
    """The page that ``entries`` make, which come newest first.

    Args:
        entries: taken only as far as the page needs them.
        wanted: which rows.
        most: rows.
        look: entries.
        clock: the store's time of a position.
        ended: asked at the end, whether there are no more than those that were taken.
    """
    rows: list[AuditRow] = []
    damaged: list[Damaged] = []
    looked, last = 0, None
    for tenant_id, entry in entries:
        looked, last = looked + 1, (tenant_id, entry.position)
        row = row_of(entry, tenant_id)
        if row is None:
            damaged.append(Damaged(tenant_id, entry.position))
        elif wanted.matches(row):
            rows.append(row)
        if looked == look or len(rows) == most:
            break
    return Page(
        rows=tuple(rows),
        damaged=tuple(damaged),
        looked=looked,
        reached=clock(last[1]) if last else None,
        next=None if last is None or ended() else str(Cursor.behind(*last)),
    )


def row_of(entry: Entry, tenant_id: str) -> AuditRow | None:
    """The row that an entry of a tenant is; ``None``: it is none that is sound and its own."""
    if entry.foreign:
        return None
    try:
        row = AuditRow.from_bytes(entry.stored, entry.position)
    except RowError:
        return None
    return row if row.payload.get("tenant_id") == tenant_id and is_sound(row) else None


def is_sound(row: AuditRow) -> bool:
    """Whether a row has what a reader relies on: ids that are text, an aware time, whole text."""
    try:
        aware = datetime.fromisoformat(row.ts).tzinfo is not None
    except (ValueError, TypeError):
        return False
    ids = (row.payload.get("request_id"), row.payload.get("tenant_id"))
    return aware and all(isinstance(found, str) for found in ids) and _is_whole(row)


def _is_whole(row: AuditRow) -> bool:
    """Whether no text of it has half a character, which JSON can name and UTF-8 cannot hold."""
    if b"\\u" not in row.to_bytes():  # only by such an escape can one come
        return True
    try:
        json.dumps(row.as_dict(), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def moment_of(milliseconds: int) -> datetime:
    """A position's milliseconds as a time in UTC; the last there is, where it is beyond that."""
    return _EPOCH + timedelta(milliseconds=min(milliseconds, _LAST_MS))


def check_bounds(most: int, look: int) -> None:
    """Raises ValueError: a page of nothing."""
    if most < 1 or look < 1:
        raise ValueError(f"a page has 1 row and looks at 1 entry at least, not {most} and {look}")


def key_of(tenant_id: str, position: str) -> tuple[int, int, str]:
    """What entries are sorted by, newest first."""
    major, minor = order_of(position)
    return -major, -minor, tenant_id
