"""The Merkle tree of RFC 6962, section 2, over SHA-256.

:class:`Frontier` grows a tree in memory proportional to the logarithm of its size. :func:`root`,
:func:`inclusion_proof` and :func:`consistency_proof` work on any store that can hand out the hashes
of complete subtrees (a :data:`NodeReader`), which is what tiles hold. :func:`verify_inclusion` and
:func:`verify_consistency` need no store.

What is guaranteed: a verification returns only for a proof that holds, exactly as long as it has to
be; whatever else it is given is a :class:`~audit.errors.ProofError`.

RFC 6962 leaves the verifying to the reader; RFC 9162, sections 2.1.3.2 and 2.1.4.2, spells it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

from audit.errors import ProofError

HASH_SIZE: Final = 32
#: The largest tree: other people's tools count in signed 64 bits.
MAX_SIZE: Final = 2**63 - 1
#: The root of the tree without leaves (RFC 6962, section 2.1: the hash of an empty string).
EMPTY_ROOT: Final = sha256().digest()

#: ``node(level, index)`` is the hash over the leaves ``index << level`` up to, and without,
#: ``(index + 1) << level``. Nobody asks for a subtree that is not complete.
NodeReader = Callable[[int, int], bytes]


def leaf_hash(entry: bytes) -> bytes:
    """The hash of one leaf (RFC 6962, section 2.1): the prefix 0 keeps it from being a node's."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node (RFC 6962, section 2.1), its prefix is 1."""
    return sha256(b"\x01" + left + right).digest()


def fold(hashes: Sequence[bytes]) -> bytes:
    """The root of a complete subtree from the hashes of one of its levels, a power of two many."""
    while len(hashes) > 1:
        hashes = [node_hash(*hashes[at : at + 2]) for at in range(0, len(hashes), 2)]
    return hashes[0]


class Frontier:
    """The right edge of a growing tree: the roots of its complete subtrees, largest first.

    Args:
        size: how many leaves there are already.
        peaks: one hash for each bit that is set in ``size``, the largest subtree first.

    Raises:
        ProofError: the hashes are none, or not as many as a tree of that size has.
    """

    __slots__ = ("_peaks", "_size")

    def __init__(self, size: int = 0, peaks: Iterable[bytes] = ()) -> None:
        self._size = _checked_size(size)
        self._peaks = [_checked_hash(peak) for peak in peaks]
        if len(self._peaks) != size.bit_count():
            raise ProofError(f"a tree of {size} leaves has {size.bit_count()} complete subtrees")

    @classmethod
    def rebuild(cls, size: int, node: NodeReader) -> Frontier:
        """The frontier of a tree of ``size`` leaves, read back from its store."""
        return cls(size, [node(level, index) for level, index in complete_subtrees(size)])

    @property
    def size(self) -> int:
        return self._size

    @property
    def peaks(self) -> tuple[bytes, ...]:
        return tuple(self._peaks)

    def append(self, leaf: bytes) -> list[bytes]:
        """Add the hash of a leaf.

        Returns:
            the hashes of the subtrees that became complete with it, at the levels 1, 2, 3 and so
            on; whoever writes tiles needs every eighth.

        Raises:
            ProofError: that is no hash.
        """
        if len(leaf) != HASH_SIZE:
            raise ProofError(_NO_HASH)
        peaks, closed, node, size = self._peaks, [], leaf, self._size
        while size & 1:
            node = sha256(b"\x01" + peaks.pop() + node).digest()
            closed.append(node)
            size >>= 1
        peaks.append(node)
        self._size += 1
        return closed

    def root(self) -> bytes:
        """The Merkle tree hash of what was appended so far."""
        if not self._peaks:
            return EMPTY_ROOT
        node = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            node = node_hash(peak, node)
        return node


def complete_subtrees(size: int) -> Iterator[tuple[int, int]]:
    """Level and index of the largest complete subtrees that make up a tree, from left to right."""
    start = 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            yield level, start >> level
            start += 1 << level


# --- from a store ---------------------------------------------------------------------------------


def root(size: int, node: NodeReader) -> bytes:
    """The Merkle tree hash, MTH, of the first ``size`` leaves (RFC 6962, section 2.1)."""
    return _subtree(0, _checked_size(size), node) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, node: NodeReader) -> list[bytes]:
    """The audit path, PATH, of a leaf in the tree of ``size`` leaves (RFC 6962, section 2.1.1).

    Raises:
        ProofError: that tree has no such leaf.
    """
    _check_leaf(index, size)
    path, start, end = [], 0, size
    while end - start > 1:
        split = _split(start, end)
        if index < split:
            path.append(_subtree(split, end, node))
            end = split
        else:
            path.append(_subtree(start, split, node))
            start = split
    return path[::-1]


def consistency_proof(old_size: int, new_size: int, node: NodeReader) -> list[bytes]:
    """The proof, PROOF, that a tree has grown from an older one (RFC 6962, section 2.1.2).

    Empty where there is nothing to prove: both have one size, or the older one has no leaves.

    Raises:
        ProofError: the older tree is the larger one.
    """
    _check_growth(old_size, new_size)
    if old_size in (0, new_size):
        return []
    path, start, end = [], 0, new_size
    while end != old_size:
        split = _split(start, end)
        if old_size <= split:
            path.append(_subtree(split, end, node))
            end = split
        else:
            path.append(_subtree(start, split, node))
            start = split
    # From the left edge it would be the older root itself, which the verifier has.
    if start:
        path.append(_subtree(start, end, node))
    return path[::-1]


# --- without a store ------------------------------------------------------------------------------


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> None:
    """Hold a leaf's audit path against a root.

    Args:
        leaf: the leaf's hash.
        index: its place, from 0.
        size: of the tree with that root.
        proof: the path, from the leaf's sibling upward.
        root: what must come out.

    Raises:
        ProofError: the proof is malformed or does not lead to the root.
    """
    _check_leaf(index, size)
    siblings = _Siblings(proof)
    node, last = _checked_hash(leaf), size - 1
    while last:
        if index & 1:
            node = node_hash(siblings.take(), node)
        elif index < last:
            node = node_hash(node, siblings.take())
        # Else it is the lone last node of its level, which moves up as it is.
        index, last = index >> 1, last >> 1
    siblings.check_empty()
    if node != _checked_hash(root):
        raise ProofError("the inclusion proof does not lead to the root")


def verify_consistency(
    old_size: int, old_root: bytes, new_size: int, new_root: bytes, proof: Sequence[bytes]
) -> None:
    """Hold a proof of growth against both roots.

    Raises:
        ProofError: the proof is malformed, or one of the roots does not come out.
    """
    _check_growth(old_size, new_size)
    siblings = _Siblings(proof)
    old = new = _checked_hash(old_root)
    if old_size == 0:
        old, new = EMPTY_ROOT, EMPTY_ROOT if new_size == 0 else new_root
    elif old_size < new_size:
        old, new = _grown(old_size - 1, new_size - 1, old_root, siblings)
    siblings.check_empty()
    if old != old_root or new != _checked_hash(new_root):
        raise ProofError("the consistency proof does not lead to both roots")


def _grown(node: int, last: int, old_root: bytes, siblings: _Siblings) -> tuple[bytes, bytes]:
    """Both roots as the proof has them; ``node`` and ``last`` are the trees' last leaves."""
    while node & 1:  # up to the largest complete subtree that ends the older tree
        node, last = node >> 1, last >> 1
    old = new = siblings.take() if node else old_root
    while last:
        if node & 1:
            sibling = siblings.take()
            old, new = node_hash(sibling, old), node_hash(sibling, new)
        elif node < last:
            new = node_hash(new, siblings.take())
        node, last = node >> 1, last >> 1
    return old, new


class _Siblings:
    """The hashes of a proof, to be used up exactly."""

    def __init__(self, proof: Sequence[bytes]) -> None:
        self._left = iter(proof)

    def take(self) -> bytes:
        for sibling in self._left:
            return _checked_hash(sibling)
        raise ProofError("the proof is too short")

    def check_empty(self) -> None:
        for _ in self._left:
            raise ProofError("the proof is too long")


# --- inside ---------------------------------------------------------------------------------------


def _subtree(start: int, end: int, node: NodeReader) -> bytes:
    """The hash over leaves that form one subtree of the RFC's recursion, complete or not."""
    parts = []
    while start < end:
        level = (end - start).bit_length() - 1
        parts.append(node(level, start >> level))
        start += 1 << level
    whole = parts.pop()
    while parts:
        whole = node_hash(parts.pop(), whole)
    return whole


def _split(start: int, end: int) -> int:
    """Where the RFC divides: behind the largest power of two smaller than the width."""
    return start + (1 << (end - start - 1).bit_length() - 1)


_NO_HASH: Final = f"a hash takes {HASH_SIZE} bytes"


def _checked_hash(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != HASH_SIZE:
        raise ProofError(_NO_HASH)
    return value


def _checked_size(size: int) -> int:
    if not 0 <= size <= MAX_SIZE:
        raise ProofError(f"a tree has 0 to {MAX_SIZE} leaves")
    return size


def _check_leaf(index: int, size: int) -> None:
    if not 0 <= index < _checked_size(size):
        raise ProofError(f"a tree of {size} leaves has no leaf {index}")


def _check_growth(old_size: int, new_size: int) -> None:
    if not 0 <= old_size <= _checked_size(new_size):
        raise ProofError(f"a tree of {new_size} leaves has not grown from one of {old_size}")
