"""audit/ledger/merkle.py: the tree of RFC 6962, held against its definition and its vectors."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import ProofError
from audit.ledger.merkle import (
    EMPTY_ROOT,
    MAX_SIZE,
    Frontier,
    complete_subtrees,
    consistency_proof,
    fold,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root,
    verify_consistency,
    verify_inclusion,
)
from tests.naive_merkle import NaiveTree

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc6962.json").read_text())
SIZES = range(201)
ENTRIES = [f"entry {number}".encode() for number in SIZES]
NAIVE = NaiveTree(ENTRIES)
HASHES = st.binary(min_size=32, max_size=32)
ANY_HASHES = st.lists(HASHES | st.binary(max_size=40), max_size=8)


def node(level: int, index: int) -> bytes:
    """A store of the complete subtrees over ``ENTRIES``."""
    assert (index + 1) << level <= len(ENTRIES), "asked for a subtree that is not complete"
    return NAIVE.mth(index << level, (index + 1) << level)


def expected_root(size: int) -> bytes:
    return NAIVE.mth(0, size)


def unhex(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


# --- the published vectors ------------------------------------------------------------------------


def vector_node(level: int, index: int) -> bytes:
    return bytes.fromhex(VECTORS["nodes"][level][index])


def test_the_published_hashes_come_out() -> None:
    """Leaf hashes, inner nodes and the roots of 0 to 8 leaves are those of the reference."""
    leaves = [leaf_hash(leaf) for leaf in unhex(VECTORS["leaves"])]
    assert leaves == unhex(VECTORS["nodes"][0])
    for below, above in zip(VECTORS["nodes"], VECTORS["nodes"][1:], strict=False):
        pairs = zip(unhex(below)[::2], unhex(below)[1::2], strict=True)
        assert [node_hash(left, right) for left, right in pairs] == unhex(above)
    assert [root(size, vector_node) for size in range(9)] == unhex(VECTORS["roots"])


@pytest.mark.parametrize("case", VECTORS["inclusion"], ids=lambda c: f"{c['index']} of {c['size']}")
def test_the_published_audit_paths_come_out(case: dict[str, object]) -> None:
    """An audit path is the reference's, hash for hash, and verifies."""
    index, size, expected = case["index"], case["size"], unhex(case["proof"])
    assert inclusion_proof(index, size, vector_node) == expected
    top = bytes.fromhex(VECTORS["roots"][size])
    verify_inclusion(vector_node(0, index), index, size, expected, top)


@pytest.mark.parametrize(
    "case", VECTORS["consistency"], ids=lambda c: f"{c['old_size']} to {c['new_size']}"
)
def test_the_published_consistency_proofs_come_out(case: dict[str, object]) -> None:
    """A proof of consistency is the reference's, hash for hash, and verifies."""
    old, new, expected = case["old_size"], case["new_size"], unhex(case["proof"])
    assert consistency_proof(old, new, vector_node) == expected
    roots = unhex(VECTORS["roots"])
    verify_consistency(old, roots[old], new, roots[new], expected)


# --- every size to 200 ----------------------------------------------------------------------------


def test_every_root_is_the_recursive_definitions() -> None:
    """Grown leaf by leaf or read from a store, the root is MTH of the RFC, for 0 to 200 leaves."""
    frontier = Frontier()
    for size in SIZES:
        assert frontier.size == size
        assert frontier.root() == root(size, node) == expected_root(size)
        frontier.append(leaf_hash(ENTRIES[size]))


def test_every_audit_path_is_the_recursive_definitions() -> None:
    """Every leaf of every tree to 200 leaves has PATH of the RFC, and it verifies."""
    for size in SIZES:
        for index in range(size):
            proof = inclusion_proof(index, size, node)
            assert proof == NAIVE.path(index, 0, size)
            verify_inclusion(node(0, index), index, size, proof, expected_root(size))


def test_every_consistency_proof_is_the_recursive_definitions() -> None:
    """Every two trees to 200 leaves have PROOF of the RFC, and it verifies."""
    for new in SIZES:
        for old in range(new + 1):
            proof = consistency_proof(old, new, node)
            assert proof == (NAIVE.proof(old, new) if old else [])
            verify_consistency(old, expected_root(old), new, expected_root(new), proof)


def test_a_frontier_is_rebuilt_from_the_store() -> None:
    """A rebuilt frontier grows on exactly as the one that was never lost."""
    grown = Frontier()
    for size in SIZES:
        rebuilt = Frontier.rebuild(size, node)
        assert (rebuilt.size, rebuilt.peaks) == (grown.size, grown.peaks)
        leaf = leaf_hash(ENTRIES[size])
        assert rebuilt.append(leaf) == grown.append(leaf)


def test_append_hands_out_the_subtrees_that_it_closed() -> None:
    """Every complete subtree is handed out once, when its last leaf comes."""
    frontier = Frontier()
    for size, entry in enumerate(ENTRIES, start=1):
        closed = frontier.append(leaf_hash(entry))
        ends = range(1, (size & -size).bit_length())
        assert closed == [node(level, (size >> level) - 1) for level in ends]


def test_a_frontier_holds_one_hash_for_each_bit_of_its_size() -> None:
    """Its memory grows with the logarithm of the tree."""
    frontier = Frontier()
    for size in range(1, 5_000):
        frontier.append(b"\x00" * 32)
        assert len(frontier.peaks) == size.bit_count()


def test_fold_is_the_root_of_a_complete_subtree() -> None:
    """A tile's 256 hashes, or any power of two of them, fold to the subtree's root."""
    for level in range(8):
        assert fold([node(0, index) for index in range(1 << level)]) == node(level, 0)


def test_complete_subtrees_make_up_the_tree() -> None:
    """Side by side, the largest first, with no gap."""
    for size in SIZES:
        spans = [(i << lv, (i + 1) << lv) for lv, i in complete_subtrees(size)]
        assert [0, *(end for _, end in spans)] == [*(start for start, _ in spans), size]


# --- refusals -------------------------------------------------------------------------------------


def flipped(value: bytes) -> bytes:
    return bytes([value[0] ^ 1, *value[1:]])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13, 100, 128, 200])
def test_a_tampered_audit_path_is_refused(size: int) -> None:
    """Another leaf, index, size, root, a changed, missing or added hash: nothing holds."""
    top = expected_root(size)
    for index in range(size):
        leaf, good = node(0, index), inclusion_proof(index, size, node)
        bad = [
            (flipped(leaf), index, size, good, top),
            (leaf, index, size, good, flipped(top)),
            (leaf, index, size, [*good, leaf], top),
            (leaf, size, size, good, top),
            (leaf, -1, size, good, top),
            (leaf, index, size, [g[:-1] for g in good] or [b""], top),
            *((leaf, index ^ 1 << bit, size, good, top) for bit in range(len(good))),
            *((leaf, index, size, good[:at] + good[at + 1 :], top) for at in range(len(good))),
            *(
                (leaf, index, size, [*good[:at], flipped(good[at]), *good[at + 1 :]], top)
                for at in range(len(good))
            ),
        ]
        for arguments in bad:
            with pytest.raises(ProofError):
                verify_inclusion(*arguments)


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 3), (3, 7), (4, 8), (6, 8), (64, 200)])
def test_a_tampered_consistency_proof_is_refused(old: int, new: int) -> None:
    """A changed root or size, a changed, missing or added hash: nothing holds."""
    before, after = expected_root(old), expected_root(new)
    good = consistency_proof(old, new, node)
    bad = [
        (old, flipped(before), new, after, good),
        (old, before, new, flipped(after), good),
        (old, before, new, after, [*good, after]),
        (new, before, old, after, good),
        (old, before, old, after, good),
        (old, before, old, before, good),
        (0, before, new, after, []),
        (0, EMPTY_ROOT, new, after, good),
        (old, before, MAX_SIZE + 1, after, good),
        *((old, before, new, after, good[:at] + good[at + 1 :]) for at in range(len(good))),
        *(
            (old, before, new, after, [*good[:at], flipped(good[at]), *good[at + 1 :]])
            for at in range(len(good))
        ),
    ]
    for arguments in bad:
        with pytest.raises(ProofError):
            verify_consistency(*arguments)


def test_trees_of_one_size_are_consistent_when_their_roots_are_one() -> None:
    """An empty proof is enough for them, and two roots of one size are a fork."""
    verify_consistency(5, expected_root(5), 5, expected_root(5), [])
    verify_consistency(0, EMPTY_ROOT, 0, EMPTY_ROOT, [])
    for forked in [(5, expected_root(5), 5, expected_root(4)), (0, EMPTY_ROOT, 0, b"\1" * 32)]:
        with pytest.raises(ProofError):
            verify_consistency(*forked, [])


@given(HASHES, st.integers(-2, 300), st.integers(-2, 300), ANY_HASHES, HASHES)
def test_garbage_as_an_audit_path_raises_nothing_else(
    leaf: bytes, index: int, size: int, proof: list[bytes], top: bytes
) -> None:
    """Whatever a stranger calls a proof, nothing but a ProofError is raised."""
    with suppress(ProofError):
        verify_inclusion(leaf, index, size, proof, top)


@given(st.integers(-2, 2**65), HASHES, st.integers(-2, 2**65), st.binary(max_size=33), ANY_HASHES)
def test_garbage_as_a_consistency_proof_raises_nothing_else(
    old: int, before: bytes, new: int, after: bytes, proof: list[bytes]
) -> None:
    """Whatever a stranger calls a proof, nothing but a ProofError is raised."""
    with suppress(ProofError):
        verify_consistency(old, before, new, after, proof)


def test_a_frontier_refuses_what_is_none() -> None:
    """A wrong number of hashes, a wrong size and a leaf that is no hash are ProofErrors."""
    for size, peaks in [(3, [b"\0" * 32]), (1, [b"short"]), (-1, []), (MAX_SIZE + 1, [])]:
        with pytest.raises(ProofError):
            Frontier(size, peaks)
    with pytest.raises(ProofError):
        Frontier().append(b"not hashed")


def test_a_proof_of_what_is_not_there_is_refused() -> None:
    """A leaf beyond the tree, and a tree that would shrink, have no proof."""
    for index, size in [(0, 0), (5, 5), (-1, 5)]:
        with pytest.raises(ProofError):
            inclusion_proof(index, size, node)
    with pytest.raises(ProofError):
        consistency_proof(6, 5, node)
