"""Holding rows against the sealed leaves: one deletion is one difference, not ten thousand.

Leaves come in chunks, rows from a store of their own. Where both go on alike, whole chunks are
compared at once. Where they part, windows on both sides grow until they meet again; what lies
between is a :class:`Gap`, and :func:`differences` says what has become of its rows, rows that have
moved far included.

What is guaranteed: memory stays flat where rows are right, and bounded where they are not
(:data:`WINDOW` and :data:`MOST` slots, a few hundred bytes each).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from audit.ledger.finding import Kind
from audit.ledger.ranges import extend

#: How far is looked ahead for a place where rows and leaves meet again.
WINDOW: Final = 1 << 17
#: How many slots may stay without a partner before the rest is called divergent.
MOST: Final = 1 << 17
_FIRST_LOOK: Final = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """A leaf, or a row beside it.

    Attributes:
        index: where it stands, among the leaves or among the rows.
        hash: of the leaf; ``None`` where it is not known, which goes with any other.
        position: of the row in the memory, if known.
        request_id: of the row, if known.
        kind: of the row, if known.
        ts: of the row, if known.
    """

    index: int
    hash: bytes | None
    position: str | None = None
    request_id: str | None = None
    kind: str | None = None
    ts: str | None = None

    @property
    def key(self) -> tuple[str | None, str] | None:
        """What an edited row usually keeps."""
        return (self.kind, self.request_id) if self.request_id else None


class Rows(Protocol):
    """Where the rows come from."""

    def hashes(self, count: int) -> list[bytes | None]:
        """Of the next rows; fewer where there are no more, or not yet."""

    def skip(self, count: int) -> None:
        """They were compared."""

    def take(self, count: int) -> list[Slot]:
        """The next rows, away from here; fewer as in :meth:`hashes`."""

    @property
    def ended(self) -> bool:
        """Whether no more will come than are here now."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Leaves and rows between two places where both are alike."""

    leaves: tuple[Slot, ...]
    rows: tuple[Slot, ...]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """What became of a leaf's row; ``leaf`` is none for an inserted row, whose place is ``row``."""

    kind: Kind
    leaf: Slot | None
    row: Slot | None = None
    count: int = 1


@dataclass
class Alignment:
    """Rows held against leaves.

    Attributes:
        rows: to be held.
        gaps: where they differ, so far.
        alike: how many are the same.
        lost: the index from which on nothing fits any more, if there is one.
        elsewhere: alike as they are, rows that stand at other positions than their leaves name.
        cut: how many leaves were counted at the end that have no rows, beyond those of the gaps.
    """

    rows: Rows
    gaps: list[Gap] = field(default_factory=list)
    alike: int = 0
    lost: int | None = None
    elsewhere: list[tuple[int, int]] = field(default_factory=list)
    _leaves: deque[Slot] = field(default_factory=deque)
    _taken: deque[Slot] = field(default_factory=deque)
    cut: int = 0
    _look: int = _FIRST_LOOK
    _apart: int = 0
    _tail: list[Slot] = field(default_factory=list)

    def feed(self, leaves: Sequence[bytes | None], slots: Iterator[Slot]) -> None:
        """The next leaves; ``slots`` are made only where they are needed."""
        if self.lost is not None:
            return
        if not self._leaves and not self._taken and self.rows.hashes(len(leaves)) == leaves:
            self.rows.skip(len(leaves))
            self.alike += len(leaves)
            return
        self._leaves.extend(slots)
        self._advance(final=False)

    def finish(self) -> None:
        """There are no more leaves."""
        self._advance(final=True)
        if self._tail:
            self.gaps.append(Gap(tuple(self._tail), (), last=True))

    @property
    def behind(self) -> tuple[Slot, ...]:
        """Rows that were taken and stand behind the last leaf, in the end."""
        return tuple(self._taken)

    @property
    def is_behind(self) -> bool:
        """Whether leaves or rows wait to be compared."""
        return bool(self._leaves or self._taken)

    def _advance(self, *, final: bool) -> None:
        while self._leaves and self.lost is None:
            self._strip()
            if self._leaves and not self._close_gap(final=final):
                return

    def _strip(self) -> None:
        leaves, taken = self._leaves, self._taken
        while leaves:
            if not taken:
                taken.extend(self.rows.take(_FIRST_LOOK))
            if not taken or not _fit(leaves[0], taken[0]):
                return
            leaf, row = leaves.popleft(), taken.popleft()
            if leaf.position and row.position and leaf.position != row.position:
                extend(self.elsewhere, leaf.index, 1)
            self.alike += 1

    def _close_gap(self, *, final: bool) -> bool:
        """Whether the heads, which differ, were put aside."""
        while True:
            if len(self._taken) < self._look:
                self._taken.extend(self.rows.take(self._look - len(self._taken)))
            if not self._taken and self.rows.ended:
                self._cut_tail()
                return True
            if not final and len(self._leaves) < self._look:
                return False
            if not (final or self.rows.ended) and len(self._taken) < self._look:
                return False
            if (meeting := self._meeting()) is not None:
                self._put_aside(*meeting)
                self._look = _FIRST_LOOK
                return True
            all_leaves = final and len(self._leaves) <= self._look
            if all_leaves and (self.rows.ended or final) and len(self._taken) <= self._look:
                self._put_aside(len(self._leaves), len(self._taken), last=True)
                return True
            if self._look >= WINDOW:
                self.lost = self._leaves[0].index
                return True
            self._look *= 4

    def _cut_tail(self) -> None:
        """There are no more rows, so all leaves from here on have none."""
        room = max(0, MOST - len(self._tail))
        self._tail.extend(islice(self._leaves, room))
        self.cut += max(0, len(self._leaves) - room)
        self._leaves.clear()

    def _meeting(self) -> tuple[int, int] | None:
        """How many leaves and rows to leave out for both to go on alike; as few as possible."""
        leaves = list(islice(self._leaves, self._look))
        rows = list(islice(self._taken, self._look))
        places: dict[bytes | None, int] = {
            leaf.hash: at for at, leaf in reversed(list(enumerate(leaves))) if leaf.hash
        }
        best: tuple[int, int] | None = None
        for b, row in enumerate(rows):
            if best is not None and b >= sum(best):
                break
            a = places.get(row.hash)
            if a is None or (best is not None and a + b >= sum(best)):
                continue
            # One alike may have moved; two in a row, or the end, are where both go on.
            if a + 1 >= len(leaves) or b + 1 >= len(rows) or _fit(leaves[a + 1], rows[b + 1]):
                best = a, b
        return best

    def _put_aside(self, leaves: int, rows: int, *, last: bool = False) -> None:
        gap = Gap(
            tuple(self._leaves.popleft() for _ in range(leaves)),
            () if last else tuple(self._taken.popleft() for _ in range(rows)),
            last,
        )
        if last:  # rows of the end may be edited ones, or stand behind the last leaf
            gap = Gap(gap.leaves, tuple(self._taken), last)
        self.gaps.append(gap)
        self._apart += leaves + rows
        if self._apart > MOST:
            self.lost = gap.leaves[0].index if gap.leaves else None


def _fit(leaf: Slot, row: Slot) -> bool:
    return leaf.hash is None or row.hash is None or leaf.hash == row.hash


# --- what became of them --------------------------------------------------------------------------


def differences(gaps: Sequence[Gap]) -> Iterator[Difference]:
    """What the gaps come to, in their order."""
    gaps = [_without_alike(gap) for gap in gaps]
    moved = _moved(gaps)
    for gap in gaps:
        leaves = [leaf for leaf in gap.leaves if leaf.hash not in moved]
        rows = [row for row in gap.rows if row.hash not in moved]
        yield from (
            Difference(Kind.REORDERED, leaf, moved[leaf.hash])
            for leaf in gap.leaves
            if leaf.hash in moved
        )
        yield from _unmoved(leaves, rows, last=gap.last)


def _without_alike(gap: Gap) -> Gap:
    """The gap without what stands at its place after all, between others that do not."""
    if len(gap.leaves) != len(gap.rows):
        return gap
    apart = [
        (leaf, row) for leaf, row in zip(gap.leaves, gap.rows, strict=True) if not _fit(leaf, row)
    ]
    return Gap(tuple(leaf for leaf, _ in apart), tuple(row for _, row in apart), gap.last)


def _moved(gaps: Sequence[Gap]) -> dict[bytes | None, Slot]:
    leaves = {leaf.hash for gap in gaps for leaf in gap.leaves if leaf.hash is not None}
    return {row.hash: row for gap in gaps for row in gap.rows if row.hash in leaves}


def _unmoved(leaves: list[Slot], rows: list[Slot], *, last: bool) -> Iterator[Difference]:
    pairs = _pairs(leaves, rows, by_order=not last)
    for leaf, row in pairs:
        yield Difference(Kind.EDITED, leaf, row)
    paired_leaves = {leaf.index for leaf, _ in pairs}
    paired_rows = {row.index for _, row in pairs}
    gone = [leaf for leaf in leaves if leaf.index not in paired_leaves]
    for run in _runs(gone):
        yield Difference(Kind.CUT if last else Kind.DELETED, run[0], None, len(run))
    new = [row for row in rows if row.index not in paired_rows]
    if not last:  # behind the last leaf is what was not sealed yet
        for run in _runs(new):
            yield Difference(Kind.INSERTED, None, run[0], len(run))


def _pairs(leaves: list[Slot], rows: list[Slot], *, by_order: bool) -> list[tuple[Slot, Slot]]:
    """Leaves and the rows that were edited in their places."""
    pairs: list[tuple[Slot, Slot]] = []
    for name in ("position", "key"):
        known = {getattr(row, name): row for row in rows if getattr(row, name)}
        for leaf in leaves:
            row = known.pop(getattr(leaf, name), None)
            if row is not None:
                pairs.append((leaf, row))
        found = {leaf.index for leaf, _ in pairs}, {row.index for _, row in pairs}
        leaves = [leaf for leaf in leaves if leaf.index not in found[0]]
        rows = [row for row in rows if row.index not in found[1]]
    if by_order and len(leaves) == len(rows):
        pairs += zip(leaves, rows, strict=True)
    return sorted(pairs, key=lambda pair: pair[0].index)


def _runs(slots: list[Slot]) -> Iterator[list[Slot]]:
    """Slots side by side."""
    run: list[Slot] = []
    for slot in slots:
        if run and slot.index != run[-1].index + 1:
            yield run
            run = []
        run.append(slot)
    if run:
        yield run
