"""audit/ledger/checkpoint.py: the signed tree of a log (C2SP tlog-checkpoint)."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import CheckpointError, NoteError, NoteKeyError, NoteSignatureError
from audit.ledger.checkpoint import Checkpoint, Cosigned, open_checkpoint, origin_of
from audit.ledger.cosignature import Cosignature, message
from audit.ledger.merkle import EMPTY_ROOT
from audit.ledger.note import Note, Signature, sign_note
from audit.ledger.note_key import Algorithm, SignerKey, VerifierKey
from tests.support import TENANT

ORIGIN = "ledger.example/audit/8f14e45f"
LOG = SignerKey(ORIGIN, bytes(range(32)))
NEXT = SignerKey(ORIGIN, bytes(range(1, 33)))
WITNESS_SEED = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
WITNESS = VerifierKey(
    "witness.example/w1", WITNESS_SEED.public_key().public_bytes_raw(), Algorithm.COSIGNATURE
)
SECRET = b"s" * 32

# The example of C2SP tlog-checkpoint.
EXAMPLE = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"

TREE = Checkpoint(ORIGIN, 5, bytes(range(32)))


def cosigned(note: Note, timestamp: int) -> Note:
    raw = WITNESS_SEED.sign(message(timestamp, note.text.encode()))
    cosignature = Cosignature(timestamp, raw).to_bytes()
    return note.adding(Signature(WITNESS.name, WITNESS.key_id, cosignature))


# --- the text -------------------------------------------------------------------------------------


def test_the_specifications_example_is_read_and_written() -> None:
    """Origin, size and root of the example, and the same text again."""
    checkpoint = Checkpoint.parse(EXAMPLE)
    assert (checkpoint.origin, checkpoint.size) == ("example.com/behind-the-sofa", 20_852_163)
    assert checkpoint.root.hex().startswith("0ac5186a91863e8e")
    assert checkpoint.to_text() == EXAMPLE


def test_an_empty_tree_has_a_checkpoint() -> None:
    """Its size is 0 and its root the hash of nothing."""
    checkpoint = Checkpoint(ORIGIN, 0, EMPTY_ROOT)
    assert checkpoint.to_text().split("\n")[1] == "0"
    assert Checkpoint.parse(checkpoint.to_text()) == checkpoint


def test_extension_lines_are_read_and_never_signed() -> None:
    """They are kept, so that others' signatures over them hold; ours has none."""
    checkpoint = Checkpoint.parse(f"{EXAMPLE}one\ntwo three\n")
    assert checkpoint.extensions == ("one", "two three")
    assert checkpoint.to_text() == f"{EXAMPLE}one\ntwo three\n"
    with pytest.raises(CheckpointError):
        checkpoint.sign(LOG)
    raw = sign_note(f"{TREE.to_text()}extension\n", LOG).to_bytes()
    assert open_checkpoint(raw, ORIGIN, [LOG.verifier]).checkpoint.size == 5


ROOT = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n\n",
        "origin\n1\n",
        f"origin\n1\n{ROOT}",
        f"\n1\n{ROOT}\n",
        f"origin\n01\n{ROOT}\n",
        f"origin\n-1\n{ROOT}\n",
        f"origin\n+1\n{ROOT}\n",
        f"origin\n1 \n{ROOT}\n",
        f"origin\n\u0661\n{ROOT}\n",
        f"origin\n9223372036854775808\n{ROOT}\n",
        f"origin\n1\n{ROOT[:-1]}\n",
        f"origin\n1\n{ROOT[:-2]}J=\n",
        f"origin\n1\n{ROOT[4:]}\n",
        f"origin\n1\n{ROOT}\n\n",
        f"origin\n1\n{ROOT}\n\nextension\n",
        f"origin\r\n1\r\n{ROOT}\r\n",
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    """Missing, empty and malformed lines, sizes and roots of another spelling."""
    with pytest.raises(CheckpointError):
        Checkpoint.parse(text)


@given(st.text() | st.from_regex(r"\w+\n\d+\n[A-Za-z0-9+/]{43}=\n(\w*\n)*", fullmatch=True))
def test_garbage_raises_a_checkpoint_error_or_is_a_checkpoint(text: str) -> None:
    """What parses is written back as it was; all else is a CheckpointError."""
    with suppress(CheckpointError):
        assert Checkpoint.parse(text).to_text() == text


# --- signed ---------------------------------------------------------------------------------------


def test_a_signed_checkpoint_opens_with_the_logs_key() -> None:
    """And says which key has signed."""
    opened = open_checkpoint(TREE.sign(LOG).to_bytes(), ORIGIN, [NEXT.verifier, LOG.verifier])
    assert (opened.checkpoint, opened.signed_by, opened.cosigned) == (TREE, (LOG.verifier,), ())


def test_keys_overlap_while_they_are_changed() -> None:
    """A checkpoint of both keys opens with either and with both."""
    raw = TREE.sign(LOG, NEXT).to_bytes()
    for known in ([LOG.verifier], [NEXT.verifier], [LOG.verifier, NEXT.verifier]):
        assert open_checkpoint(raw, ORIGIN, known).signed_by == tuple(known)


def test_a_wrong_key_opens_nothing() -> None:
    """Nor does no key at all, nor a key of the right bytes under another name."""
    for known in ([], [NEXT.verifier], [LOG.verifier.renamed("ledger.example/other")]):
        with pytest.raises(NoteSignatureError):
            open_checkpoint(TREE.sign(LOG).to_bytes(), ORIGIN, known)


def test_a_checkpoint_of_another_log_is_refused() -> None:
    """Though it is signed with a key that is trusted: tenants may share one."""
    with pytest.raises(CheckpointError):
        open_checkpoint(TREE.sign(LOG).to_bytes(), f"{ORIGIN}0", [LOG.verifier])


def test_an_altered_checkpoint_is_refused() -> None:
    """Another size, root or origin under the old signature."""
    signed = TREE.sign(LOG)
    for other in (Checkpoint(ORIGIN, 6, TREE.root), Checkpoint(ORIGIN, 5, EMPTY_ROOT)):
        raw = Note(other.to_text(), signed.signatures).to_bytes()
        with pytest.raises(NoteSignatureError):
            open_checkpoint(raw, ORIGIN, [LOG.verifier])


def test_cosignatures_are_reported_with_their_time() -> None:
    """Those of known witnesses; a note that knows none opens as before."""
    raw = cosigned(TREE.sign(LOG), 1_800_000_000).to_bytes()
    opened = open_checkpoint(raw, ORIGIN, [LOG.verifier], [WITNESS])
    assert opened.cosigned == (Cosigned(WITNESS, 1_800_000_000),)
    assert open_checkpoint(raw, ORIGIN, [LOG.verifier]).cosigned == ()


def test_a_witness_alone_does_not_make_a_checkpoint() -> None:
    """Without a signature of the log there is none."""
    note = cosigned(TREE.sign(LOG), 1_800_000_000)
    raw = Note(note.text, note.signatures[1:]).to_bytes()
    with pytest.raises(NoteSignatureError):
        open_checkpoint(raw, ORIGIN, [LOG.verifier], [WITNESS])


def test_a_key_of_the_wrong_kind_is_a_mistake() -> None:
    """It would never verify anything, and nobody would notice."""
    raw = cosigned(TREE.sign(LOG), 1_800_000_000).to_bytes()
    for logs, witnesses in [([WITNESS], []), ([LOG.verifier], [NEXT.verifier])]:
        with pytest.raises(NoteKeyError):
            open_checkpoint(raw, ORIGIN, logs, witnesses)


def test_a_signed_note_that_is_no_checkpoint_is_refused() -> None:
    """The log's signature does not make it one."""
    with pytest.raises(CheckpointError):
        open_checkpoint(sign_note("hello\n", LOG).to_bytes(), ORIGIN, [LOG.verifier])


@given(st.binary())
def test_garbage_does_not_open(raw: bytes) -> None:
    """Whatever a stranger calls a checkpoint, the answer is a NoteError."""
    with pytest.raises(NoteError):
        open_checkpoint(raw, ORIGIN, [LOG.verifier])


# --- origins --------------------------------------------------------------------------------------


def test_an_origin_names_no_tenant() -> None:
    """It is a pseudonym: the same for the same tenant and secret, and nothing of either in it."""
    origin = origin_of("ledger.example/audit", TENANT, SECRET)
    assert re.fullmatch(r"ledger\.example/audit/[0-9a-f]{32}", origin)
    assert origin == origin_of("ledger.example/audit", TENANT, SECRET)
    assert TENANT.replace("-", "") not in origin
    others = [
        origin_of("ledger.example/audit", TENANT, b"t" * 32),
        origin_of("ledger.example/audit", TENANT[:-1] + "1", SECRET),
    ]
    assert len({origin, *others}) == 3


def test_an_origin_is_a_name_for_its_key() -> None:
    """What origin_of returns can be a key's name, as the specification recommends."""
    origin = origin_of("ledger.example", TENANT, SECRET)
    assert LOG.renamed(origin).verifier.name == origin


@pytest.mark.parametrize("prefix", ["", "a b", "a+b", "a/", "a\n"])
def test_an_unusable_prefix_is_refused(prefix: str) -> None:
    """Spaces, pluses and a slash at the end do not begin an origin."""
    with pytest.raises(CheckpointError):
        origin_of(prefix, TENANT, SECRET)


def test_a_short_secret_is_refused() -> None:
    """Whoever can guess it can tell which tenant is which."""
    with pytest.raises(CheckpointError):
        origin_of("ledger.example", TENANT, b"short")
