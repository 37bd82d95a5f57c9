"""The ledger held against ``aics-tlog``, an implementation of the C2SP texts not written here."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.errors import NoteSignatureError, ProofError
from audit.ledger.checkpoint import Checkpoint, Cosigned, open_checkpoint
from audit.ledger.merkle import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root,
    verify_consistency,
    verify_inclusion,
)
from audit.ledger.note import Note
from audit.ledger.note_key import Algorithm, SignerKey, VerifierKey
from audit.ledger.tile_directory import TileDirectory
from tests.integration.oracle import installed
from tests.sealed import fill

pytestmark = pytest.mark.timeout(500)

ORIGIN = "ledger.example/audit/8f14e45f"
LOG = SignerKey(ORIGIN, bytes(range(32)))
ENTRIES = [b"row %d" % number for number in range(700)]


@pytest.fixture(scope="module")
def aics() -> ModuleType:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(installed("aics-tlog"))
        return importlib.import_module("aics_tlog")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> TileDirectory:
    """A log that grew to 700 rows in steps."""
    directory = TileDirectory(tmp_path_factory.mktemp("log"))
    for old, new in [(0, 100), (100, 256), (256, 700)]:
        fill(directory, ENTRIES[:new], old)
    return directory


def test_roots_and_proofs_are_the_oracles_for_all_sizes_to_200(aics: ModuleType) -> None:
    """Each root, audit path and consistency proof is the oracle's, and each side accepts it."""
    tree, frontier, nodes = aics.MerkleTree(ENTRIES, level_cache_sizes=201), Frontier(), {}

    def node(level: int, index: int) -> bytes:
        return nodes[level, index]

    for size in range(201):
        top = tree.root(size)
        assert frontier.root() == root(size, node) == top
        for index in range(size):
            path = inclusion_proof(index, size, node)
            assert path == tree.inclusion_proof(index, size)
            assert aics.verify_inclusion(leaf_hash(ENTRIES[index]), index, size, path, top)
        for old in range(size + 1):
            grown = consistency_proof(old, size, node)
            assert grown == tree.consistency_proof(old, size)
            assert aics.verify_consistency(old, size, tree.root(old), top, grown)
        nodes[0, size] = leaf_hash(ENTRIES[size])
        closed = frontier.append(nodes[0, size])
        for level, value in enumerate(closed, start=1):
            nodes[level, size >> level] = value


def test_both_refuse_the_same_tampered_proofs(aics: ModuleType) -> None:
    """Hashes swapped, dropped, doubled, another index, another size: one verdict of both."""
    tree = aics.MerkleTree(ENTRIES)
    for size in (1, 2, 5, 8, 13, 64, 200):
        for index in range(size):
            path = tree.inclusion_proof(index, size)
            for changed in (path, path[1:], path[:-1], path[::-1], path + path[-1:]):
                for place in (index, index ^ 1, index + 1):
                    arguments = (leaf_hash(ENTRIES[index]), place, size, changed, tree.root(size))
                    assert accepts_inclusion(*arguments) == aics.verify_inclusion(*arguments)
        for old in range(1, size + 1):
            proof = tree.consistency_proof(old, size)
            for changed in (proof, proof[1:], proof[:-1], proof[::-1], proof + proof[-1:]):
                for before in (old, old - 1, old + 1):
                    heads = (before, size, tree.root(old), tree.root(size), changed)
                    assert accepts_growth(*heads) == aics.verify_consistency(*heads)


def accepts_inclusion(leaf: bytes, index: int, size: int, path: list[bytes], top: bytes) -> bool:
    try:
        verify_inclusion(leaf, index, size, path, top)
    except ProofError:
        return False
    return True


def accepts_growth(old: int, new: int, before: bytes, after: bytes, proof: list[bytes]) -> bool:
    try:
        verify_consistency(old, before, new, after, proof)
    except ProofError:
        return False
    return True


def test_the_oracle_reads_our_tiles(aics: ModuleType, directory: TileDirectory) -> None:
    """Roots, proofs and rows, out of the files as they lie there."""
    reader = aics.FileSystemTileReader(directory.root)
    for size in (100, 256, 700):
        node = directory.node_reader(size)
        assert aics.tree_root_from_tiles(reader, size) == root(size, node)
        path = aics.inclusion_proof_from_tiles(reader, 7, size)
        assert path == inclusion_proof(7, size, node)
    assert aics.read_entry(reader, 699, 700) == ENTRIES[699]


def test_our_tiles_are_the_oracles_byte_for_byte(
    aics: ModuleType, directory: TileDirectory, tmp_path: Path
) -> None:
    """What it writes for the same rows has the same names and bytes as ours."""
    aics.TileWriter(ENTRIES).write_to(tmp_path)
    written = {path.relative_to(tmp_path): path for path in (tmp_path / "tile").rglob("*")}
    files = {name: path.read_bytes() for name, path in written.items() if path.is_file()}
    assert len(files) == 7
    assert files == {name: (directory.root / name).read_bytes() for name in files}


def test_the_oracle_accepts_our_keys_and_checkpoints(aics: ModuleType) -> None:
    """It reads our verifier key, accepts our signature, and refuses a tampered root."""
    key = aics.parse_vkey(LOG.verifier.to_text())
    assert key.key_id == LOG.key_id
    signed = Checkpoint(ORIGIN, 700, bytes(32)).sign(LOG)
    assert aics.verify_note(aics.parse_note(signed.to_bytes()), [key])
    assert aics.parse_checkpoint(signed.text).size == 700
    tampered = Note(Checkpoint(ORIGIN, 701, bytes(32)).to_text(), signed.signatures)
    assert not accepts_note(aics, tampered, key)
    assert not accepts_note(aics, signed, aics.parse_vkey(other_key().to_text()))


def other_key() -> VerifierKey:
    return SignerKey(ORIGIN, bytes(32)).verifier


def accepts_note(aics: ModuleType, note: Note, key: object) -> bool:
    try:
        return bool(aics.verify_note(aics.parse_note(note.to_bytes()), [key]))
    except ValueError:
        return False


def test_we_accept_the_oracles_cosignatures(aics: ModuleType) -> None:
    """A checkpoint that it has cosigned opens with the witness's key; a forged one does not."""
    seed = Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35)))
    public_key = seed.public_key()
    theirs = aics.cosignature_vkey("witness.example/w1", public_key)
    witness = VerifierKey.parse(aics.format_vkey(theirs))
    assert (witness.algorithm, witness.key_id) == (Algorithm.COSIGNATURE, theirs.key_id)
    signed = Checkpoint(ORIGIN, 700, bytes(32)).sign(LOG)
    head = (ORIGIN, 700, bytes(32))
    _, line = aics.sign_cosignature(seed, witness.name, 1_800_000_000, *head)
    raw = aics.Note(signed.text, (*aics.parse_note(signed.to_bytes()).signatures, line)).to_bytes()
    opened = open_checkpoint(raw, ORIGIN, [LOG.verifier], [witness])
    assert opened.cosigned == (Cosigned(witness, 1_800_000_000),)
    forged = raw.replace(b"\n700\n", b"\n701\n")
    with pytest.raises(NoteSignatureError):
        open_checkpoint(forged, ORIGIN, [LOG.verifier], [witness])
