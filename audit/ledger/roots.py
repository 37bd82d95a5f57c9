"""Holding what checkpoints claim against the roots of a growing tree, whoever grows it.

What is guaranteed: every claim up to the newest size is held against the root at its own size, in
one pass; where the newest root does not come out, the last one that did narrows down where. What
a witness has signed counts only where it came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from audit.ledger.claims import Claim, fork
from audit.ledger.finding import Finding, Kind, Source
from audit.ledger.subject import Subject

_MOST_FORKS: Final = 100


class Roots:
    """Holds claims against the roots of a growing tree."""

    def __init__(self, subject: Subject, size: int) -> None:
        self._newest = size
        claims = sorted((c for c in subject.claims if c.size <= size), key=lambda c: c.size)
        self._claims = _merged(claims, subject.older)
        self._next = next(self._claims, None)
        self.right: list[Claim] = []
        self.wrong: list[Claim] = []
        self.fits_to = 0
        self.cosigned_to = 0

    def due(self, end: int) -> int | None:
        """The size of the next claim up to ``end``."""
        return self._next.size if self._next and self._next.size <= end else None

    def hold(self, root: bytes | None) -> None:
        """The root at the size that is due."""
        claim, self._next = self._next, next(self._claims, None)
        if claim is None or root is None:
            return
        if claim.root == root:
            self.fits_to = claim.size
            if claim.trusted and claim.cosigned:
                self.cosigned_to = claim.size
            if claim.size == self._newest:
                self.right.append(claim)
        elif len(self.wrong) < _MOST_FORKS:
            self.wrong.append(claim)


def _merged(claims: list[Claim], older: Iterable[Claim]) -> Iterator[Claim]:
    at = 0
    for claim in older:
        while at < len(claims) and claims[at].size <= claim.size:
            yield claims[at]
            at += 1
        yield claim
    yield from claims[at:]


def hold_all(roots: Roots, size: int, root: Callable[[], bytes | None]) -> None:
    while roots.due(size) is not None:
        roots.hold(root())


def by_roots(subject: Subject, roots: Roots, source: Source, held: int) -> Iterator[Finding]:
    """What the roots say by themselves."""
    size = subject.claim.size
    if held < size:
        yield subject.finding(Kind.CUT, source, index=held, count=size - held)
        return
    if any(claim.size == size for claim in roots.right):
        for claim in roots.wrong:
            if claim.trusted and claim not in subject.claims[:1]:
                yield replace(fork(subject.log, claim, "the rows"), tenant=subject.tenant)
        return
    first = roots.fits_to
    yield subject.finding(
        Kind.DIVERGENT, source, index=first, count=size - first,
        text=f"these rows do not have the root of {subject.claim.name}",
    )  # fmt: skip
