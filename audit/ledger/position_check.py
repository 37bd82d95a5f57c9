"""Whether the files of positions are what the sealer has left: beside the bundles, one line a row.

Nothing proves them, yet trimmed rows are found by them. What is guaranteed: each file is there and
in order, where the memory still has a row, it has it there, and the last line is the position that
the memory has beside its checkpoint, which the sealer goes on by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from audit.ledger.finding import Finding, Kind, Source
from audit.ledger.held_rows import Positions
from audit.ledger.ranges import extend
from audit.ledger.subject import Subject
from audit.memory.base import order_of


def last_apart(
    log: str, tenant: str, source: Source, positions: Positions, size: int, position: str | None
) -> Finding | None:
    """What is wrong with the position that the memory has beside its checkpoint, of that size."""
    line = positions.of_row(size - 1)
    if position == line or (position and line is None):
        return None  # of a file that is not as it should be, the check of all of them tells
    where, text = source, "the file beside the last bundle has another position for the last row"
    if position is None:
        where, text = Source.MEMORY, "the memory has lost the position of the last sealed row"
    return Finding(
        kind=Kind.ALTERED, source=where, log=log, tenant=tenant, index=size - 1,
        position=position or line, text=text + ", which the sealer goes on by",
    )  # fmt: skip


class PositionCheck:
    """The positions of one log, bundle by bundle."""

    def __init__(self, subject: Subject, positions: Positions) -> None:
        self._subject = subject
        self._positions = positions
        # Somebody who fetched what C2SP names has none, and needs none.
        self._wanted = subject.memory is not None or positions.are_there
        self._last = (-1, -1)
        self._flaws: list[tuple[Kind, int, int]] = []
        self._elsewhere: list[tuple[int, int]] = []

    def read(self, start: int, count: int) -> None:
        """The file of the bundle that begins there."""
        if not self._wanted:
            return
        lines = self._positions.of_bundle_as_it_is(start)
        if lines is None:
            self._flaws.append((Kind.MISSING, start, count))
            return
        try:
            orders = [order_of(line) for line in lines]
        except ValueError:
            orders = []
        if len(orders) != count or not self._goes_on(orders):
            self._flaws.append((Kind.MALFORMED, start, count))
        self._last = max([self._last, *orders])

    def hold(self, start: int, there: Sequence[str], in_memory: Sequence[str]) -> None:
        """Rows that the memory has, from ``start`` on."""
        if list(there) == list(in_memory):
            return
        for at, (line, position) in enumerate(zip(there, in_memory, strict=False)):
            if line != position:
                extend(self._elsewhere, start + at, 1)

    def flaws(self) -> Iterator[Finding]:
        """Files that are wrong by themselves."""
        subject = self._subject
        for kind, index, count in self._flaws:
            text = "the file of positions beside this bundle"
            yield subject.finding(kind, subject.source, index=index, count=count, text=text)

    def altered(self, further: Sequence[tuple[int, int]]) -> Iterator[Finding]:
        """Rows elsewhere in the memory, with those that somebody else has seen."""
        subject = self._subject
        for index, count in sorted([*self._elsewhere, *further]):
            text = "the memory has these rows at other positions than the file beside the bundle"
            yield subject.finding(Kind.ALTERED, subject.source, index=index, count=count, text=text)

    def _goes_on(self, orders: list[tuple[int, int]]) -> bool:
        return all(a < b for a, b in zip([self._last, *orders], orders, strict=False))
