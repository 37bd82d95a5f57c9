"""audit/ledger/proof.py: a proof that verifies offline (C2SP tlog-proof)."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import CheckpointError, LedgerError, NoteSignatureError, ProofError
from audit.ledger.checkpoint import Checkpoint
from audit.ledger.note import Note
from audit.ledger.note_key import SignerKey
from audit.ledger.proof import TlogProof
from tests.naive_merkle import NaiveTree

ORIGIN = "ledger.example/audit/8f14e45f"
LOG = SignerKey(ORIGIN, bytes(range(32)))
ENTRIES = [b"row %d" % number for number in range(13)]
TREE = NaiveTree(ENTRIES)
SIGNED = Checkpoint(ORIGIN, 13, TREE.mth(0, 13)).sign(LOG)


def proof_of(index: int, extra: bytes = b"") -> TlogProof:
    return TlogProof(index, tuple(TREE.path(index, 0, 13)), SIGNED, extra)


GOOD = proof_of(6, b"why").to_bytes()


def test_a_proof_reads_as_the_specification_says() -> None:
    """Header, extra data, index, the path from below, a blank line, and the checkpoint verbatim."""
    head, _, checkpoint = GOOD.decode().partition("\n\n")
    lines = head.split("\n")
    assert lines[:3] == ["c2sp.org/tlog-proof@v1", "extra d2h5", "index 6"]
    assert len(lines) == 3 + len(TREE.path(6, 0, 13))
    assert checkpoint.encode() == SIGNED.to_bytes()
    assert b"extra" not in proof_of(6).to_bytes()


@pytest.mark.parametrize("index", range(13))
def test_a_proof_verifies_offline(index: int) -> None:
    """With nothing but the entry, the origin and the verifier key, after a way through bytes."""
    proof = TlogProof.parse(proof_of(index, b"\0extra").to_bytes())
    assert proof == proof_of(index, b"\0extra")
    opened = proof.verify(ENTRIES[index], ORIGIN, [LOG.verifier])
    assert opened.checkpoint.size == 13


def test_a_log_of_one_entry_has_a_proof_without_hashes() -> None:
    """The leaf is the root."""
    signed = Checkpoint(ORIGIN, 1, TREE.mth(0, 1)).sign(LOG)
    proof = TlogProof.parse(TlogProof(0, (), signed).to_bytes())
    assert proof.verify(ENTRIES[0], ORIGIN, [LOG.verifier]).checkpoint.size == 1


def test_a_proof_of_something_else_is_refused() -> None:
    """Another entry, another place, another log, another key, another tree."""
    proof = TlogProof.parse(GOOD)
    with pytest.raises(ProofError):
        proof.verify(ENTRIES[7], ORIGIN, [LOG.verifier])
    with pytest.raises(ProofError):
        TlogProof(7, proof.path, SIGNED).verify(ENTRIES[6], ORIGIN, [LOG.verifier])
    with pytest.raises(CheckpointError):
        proof.verify(ENTRIES[6], f"{ORIGIN}0", [LOG.verifier])
    with pytest.raises(NoteSignatureError):
        proof.verify(ENTRIES[6], ORIGIN, [SignerKey(ORIGIN, os.urandom(32)).verifier])
    other = Note(Checkpoint(ORIGIN, 13, bytes(32)).to_text(), SIGNED.signatures)
    with pytest.raises(NoteSignatureError):
        TlogProof(6, proof.path, other).verify(ENTRIES[6], ORIGIN, [LOG.verifier])


def test_no_bit_of_a_proof_can_change() -> None:
    """But in the extra data, for which nobody vouches."""
    extra = range(GOOD.index(b"d2h5"), GOOD.index(b"d2h5") + 4)
    for at in range(len(GOOD)):
        if at in extra:
            continue
        altered = bytes([*GOOD[:at], GOOD[at] ^ 1, *GOOD[at + 1 :]])
        with pytest.raises(LedgerError):
            TlogProof.parse(altered).verify(ENTRIES[6], ORIGIN, [LOG.verifier])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"@v1", b"@v2"),
        (b"extra d2h5", b"extra "),
        (b"extra d2h5", b"extra d2h"),
        (b"extra d2h5\n", b"extra d2h5\nextra d2h5\n"),
        (b"index 6", b"index 06"),
        (b"index 6", b"index -6"),
        (b"index 6\n", b""),
        (b"index 6", b"index 9223372036854775808"),
        (b"index 6\n", b"index 6\nAAAA\n"),
        (b"index 6\n", b"index 6\n" + b"A" * 43 + b"=\r\n"),
        (b"index 6\n", b"index 6\n" + (b"A" * 43 + b"=\n") * 64),
        (b"c2sp", "ćsp".encode()),
        (b"\n\n", b"\n"),
    ],
)
def test_a_malformed_proof_is_refused(old: bytes, new: bytes) -> None:
    """Every line has one spelling, and its place."""
    assert old in GOOD
    with pytest.raises(LedgerError):
        TlogProof.parse(GOOD.replace(old, new, 1 if old != b"\n\n" else -1))


PIECES = st.sampled_from(
    [b"c2sp.org/tlog-proof@v1\n", b"extra d2h5\n", b"index 6\n", b"\n", SIGNED.to_bytes()]
)


@given(st.binary() | st.lists(PIECES | st.binary(max_size=5), max_size=7).map(b"".join))
def test_garbage_raises_a_ledger_error_or_is_a_proof(raw: bytes) -> None:
    """What parses is written back byte for byte; all else is a LedgerError."""
    with suppress(LedgerError):
        assert TlogProof.parse(raw).to_bytes() == raw
