"""RFC 6962, section 2.1, word for word and without any cleverness: what the ledger is held against.

It shares no code with ``audit.ledger``. ``D[a:b]`` of the RFC is a pair of numbers here, so that
hashes can be kept; ``k`` is the RFC's own, the largest power of two smaller than ``b - a``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


class NaiveTree:
    def __init__(self, entries: Sequence[bytes]) -> None:
        self._entries = entries
        self._known: dict[tuple[int, int], bytes] = {}

    def mth(self, a: int, b: int) -> bytes:
        """MTH(D[a:b])."""
        if (a, b) not in self._known:
            self._known[a, b] = hashlib.sha256(self._preimage(a, b)).digest()
        return self._known[a, b]

    def _preimage(self, a: int, b: int) -> bytes:
        if a == b:
            return b""
        if b - a == 1:
            return b"\x00" + self._entries[a]
        k = largest_power_of_two_below(b - a)
        return b"\x01" + self.mth(a, a + k) + self.mth(a + k, b)

    def path(self, m: int, a: int, b: int) -> list[bytes]:
        """PATH(m, D[a:b])."""
        if b - a == 1:
            return []
        k = largest_power_of_two_below(b - a)
        if m < k:
            return [*self.path(m, a, a + k), self.mth(a + k, b)]
        return [*self.path(m - k, a + k, b), self.mth(a, a + k)]

    def proof(self, m: int, n: int) -> list[bytes]:
        """PROOF(m, D[n])."""
        return self._subproof(m, 0, n, True)

    def _subproof(self, m: int, a: int, b: int, known: bool) -> list[bytes]:
        """SUBPROOF(m, D[a:b], known)."""
        if m == b - a:
            return [] if known else [self.mth(a, b)]
        k = largest_power_of_two_below(b - a)
        if m <= k:
            return [*self._subproof(m, a, a + k, known), self.mth(a + k, b)]
        return [*self._subproof(m - k, a + k, b, False), self.mth(a, a + k)]


def largest_power_of_two_below(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k
