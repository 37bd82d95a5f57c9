"""audit/ledger/note.py, note_key.py, cosignature.py: C2SP signed notes and what signs them."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import NoteError, NoteKeyError, NoteSignatureError
from audit.ledger.cosignature import Cosignature, message
from audit.ledger.note import MAX_BYTES, MAX_SIGNATURES, Note, Signature, open_note, sign_note
from audit.ledger.note_key import Algorithm, SignerKey, VerifierKey
from audit.ledger.text import decode_base64, decode_decimal, encode_base64

# The example of Go's golang.org/x/mod/sumdb/note, from its package documentation.
GO_SIGNER = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_VERIFIER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
GO_NOTE = (
    f"{GO_TEXT}\n— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXg"
    "KvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)

LOG = SignerKey("ledger.example/audit", bytes(range(32)))
OTHER = SignerKey("other.example", bytes(range(1, 33)))
TEXT = "first\n\nsecond, è subito sera\n"


# --- keys -----------------------------------------------------------------------------------------


def test_keys_are_read_and_written_as_go_does() -> None:
    """Go's example keys are read, belong together, and are written back letter for letter."""
    signer = SignerKey.parse(GO_SIGNER)
    assert signer.to_text() == GO_SIGNER
    assert signer.verifier == VerifierKey.parse(GO_VERIFIER)
    assert signer.verifier.to_text() == GO_VERIFIER
    assert signer.key_id.hex() == "c74f20a3"


def test_a_note_is_signed_as_go_does() -> None:
    """Ed25519 knows no chance: Go's example note comes out byte for byte, and opens."""
    raw = sign_note(GO_TEXT, SignerKey.parse(GO_SIGNER)).to_bytes()
    assert raw == GO_NOTE.encode()
    assert open_note(raw, [VerifierKey.parse(GO_VERIFIER)]).text == GO_TEXT


def test_white_space_around_a_key_does_not_count() -> None:
    """A key file ends in a newline."""
    assert SignerKey.parse(f" {LOG.to_text()}\n") == LOG
    assert VerifierKey.parse(f"{LOG.verifier.to_text()}\r\n") == LOG.verifier


@pytest.mark.parametrize("key", [LOG, LOG.verifier], ids=["signer", "verifier"])
def test_a_damaged_key_is_refused(key: SignerKey | VerifierKey) -> None:
    """One character changed, lost or doubled anywhere: NoteKeyError, never another key."""
    text = key.to_text()
    for at in range(len(text)):
        other = "B" if text[at] != "B" else "C"
        for damaged in (text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :]):
            with pytest.raises(NoteKeyError) as caught:
                type(key).parse(damaged)
            assert text[-12:] not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name+c74f20a3",
        "name+c74f20a3+",
        "name+zzzzzzzz+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        "PeterNeumann+C74F20A3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        "+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        GO_SIGNER,
        f"PeterNeumann+c74f20a3+{encode_base64(bytes([6]) + bytes(32))}",
    ],
)
def test_what_is_no_verifier_key_is_refused(text: str) -> None:
    """Neither is a signer key, nor one of an algorithm that is unknown here."""
    with pytest.raises(NoteKeyError):
        VerifierKey.parse(text)


def test_a_signer_keys_secret_is_never_shown() -> None:
    """Neither its repr nor an error about it holds any part of the secret."""
    seed = LOG.to_text().rpartition("+")[2]
    assert repr(LOG.seed) not in repr(LOG)
    assert seed not in repr(LOG)
    for text in (seed, LOG.to_text()[:-1], LOG.to_text().replace("PRIVATE+", "")):
        with pytest.raises(NoteKeyError) as caught:
            SignerKey.parse(text)
        assert caught.value.__context__ is None
        assert seed[:8] not in str(caught.value)


def test_a_cosignature_key_does_not_sign_logs() -> None:
    """The text of a signer key that says 0x04 is refused."""
    seed = bytes(32)
    public_key = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    witness = VerifierKey("w.example", public_key, Algorithm.COSIGNATURE)
    material = encode_base64(b"\x04" + seed)
    with pytest.raises(NoteKeyError):
        SignerKey.parse(f"PRIVATE+KEY+w.example+{witness.key_id.hex()}+{material}")


def test_a_generated_key_is_new() -> None:
    """Two keys of one name differ; the source of chance is an argument."""
    one, two = SignerKey.generate("a.example"), SignerKey.generate("a.example")
    assert one.seed != two.seed
    assert SignerKey.generate("a.example", random=bytes).seed == bytes(32)


def test_a_renamed_key_has_another_id() -> None:
    """Name, algorithm and key each go into the id, and signing and verifying half agree."""
    renamed = LOG.renamed("ledger.example/other")
    assert renamed.verifier == LOG.verifier.renamed("ledger.example/other")
    cosigner = VerifierKey(LOG.name, LOG.verifier.public_key, Algorithm.COSIGNATURE)
    assert len({LOG.key_id, renamed.key_id, cosigner.key_id}) == 3


@pytest.mark.parametrize(
    "name", ["", "a b", "a+b", "a\u00a0b", "a\u2028b", "a\nb", "a\0b", "\ud800"]
)
def test_a_key_has_a_proper_name(name: str) -> None:
    """No spaces of any kind, no plus, no control characters."""
    for kind in (SignerKey, VerifierKey):
        with pytest.raises(NoteKeyError):
            kind(name, bytes(32))


# --- notes ----------------------------------------------------------------------------------------


def test_a_note_of_several_signatures_opens_with_any_of_their_keys() -> None:
    """Each line stands for itself; the lines of unknown keys are kept and not vouched for."""
    raw = sign_note(TEXT, LOG, OTHER).to_bytes()
    for known, names in [
        ([LOG], [LOG.name]),
        ([OTHER], [OTHER.name]),
        ([OTHER, LOG], [LOG.name, OTHER.name]),
    ]:
        opened = open_note(raw, [signer.verifier for signer in known])
        assert opened.text == TEXT
        assert [signature.name for signature in opened.signatures] == names
        assert opened.note.to_bytes() == raw


def test_an_altered_text_or_signature_is_refused() -> None:
    """No bit of text or signature can change, under a key that is known."""
    raw = bytearray(sign_note("text\n", LOG).to_bytes())
    for at in range(len(raw)):
        altered = bytes([*raw[:at], raw[at] ^ 1, *raw[at + 1 :]])
        with pytest.raises(NoteError):
            open_note(altered, [LOG.verifier])


def test_a_known_keys_bad_signature_is_refused_beside_good_ones() -> None:
    """It does not help that another known key, or the same on another line, has signed well."""
    good = sign_note(TEXT, LOG, OTHER)
    bad = Signature(OTHER.name, OTHER.key_id, bytes(64))
    for signatures in [(good.signatures[0], bad), (*good.signatures, bad)]:
        raw = Note(TEXT, signatures).to_bytes()
        with pytest.raises(NoteSignatureError):
            open_note(raw, [LOG.verifier, OTHER.verifier])
    unknown = Note(TEXT, (good.signatures[0], bad)).to_bytes()
    assert open_note(unknown, [LOG.verifier]).text == TEXT


def test_a_note_of_unknown_keys_alone_is_refused() -> None:
    """Also where a line shares the name or the id of a known key, but not both."""
    signature = sign_note(TEXT, LOG).signatures[0].signature
    for name, key_id in [(OTHER.name, OTHER.key_id), (LOG.name, b"abcd"), ("x", LOG.key_id)]:
        raw = Note(TEXT, (Signature(name, key_id, signature),)).to_bytes()
        with pytest.raises(NoteSignatureError):
            open_note(raw, [LOG.verifier])
    with pytest.raises(NoteSignatureError):
        open_note(sign_note(TEXT, LOG).to_bytes(), [])


def test_a_text_is_signed_with_its_last_newline() -> None:
    """The signature covers the text and nothing of what follows it."""
    signature = sign_note(TEXT, LOG).signatures[0]
    assert LOG.verifier.verify(TEXT.encode(), signature.signature)
    assert not LOG.verifier.verify(TEXT[:-1].encode(), signature.signature)
    assert not LOG.verifier.verify(TEXT.encode(), signature.signature[:-1])


GOOD_LINE = sign_note("text\n", LOG).signatures[0].to_line()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"text\n",
        b"text\n\n",
        f"text\n{GOOD_LINE}".encode(),
        f"text\n\n{GOOD_LINE[:-1]}".encode(),
        f"text\n\n{GOOD_LINE}\n".encode(),
        f"text\n\n{GOOD_LINE}rubbish\n".encode(),
        f"text\n\n{GOOD_LINE.replace('—', '-')}".encode(),
        f"text\n\n{GOOD_LINE.replace('=', '')}".encode(),
        f"text\n\n{GOOD_LINE}".replace("\n", "\r\n").encode(),
        f"te\txt\n\n{GOOD_LINE}".encode(),
        f"te\0xt\n\n{GOOD_LINE}".encode(),
        b"te\xffxt\n\n" + GOOD_LINE.encode(),
        "text\n\n— name AAAAAA==\n".encode(),
        "text\n\n— a+b AAAAAAAA\n".encode(),
        "text\n\n—  AAAAAAAA\n".encode(),
        f"text\n\n{GOOD_LINE * (MAX_SIGNATURES + 1)}".encode(),
        f"{'t' * MAX_BYTES}\n\n{GOOD_LINE}".encode(),
    ],
)
def test_what_is_no_note_is_refused(raw: bytes) -> None:
    """Control characters, broken UTF-8, no blank line, no newline, no em dash, bad base64, size."""
    with pytest.raises(NoteError):
        Note.parse(raw)


def test_a_note_may_have_a_hundred_signatures() -> None:
    """More than the sixteen that a verifier must take."""
    note = Note("text\n", sign_note("text\n", LOG).signatures * MAX_SIGNATURES)
    assert len(open_note(note.to_bytes(), [LOG.verifier]).signatures) == MAX_SIGNATURES


@pytest.mark.parametrize("text", ["", "no newline", "tab\t\n", "\ud800\n"])
def test_a_text_that_no_note_has_is_not_signed(text: str) -> None:
    """What could not be read back is not written."""
    with pytest.raises(NoteError):
        sign_note(text, LOG)
    with pytest.raises(NoteError):
        sign_note("text\n")


def test_a_keys_new_signature_takes_the_place_of_its_old_one() -> None:
    """A note to which signatures come grows by one line a key."""
    note = sign_note(TEXT, LOG, OTHER)
    renewed = Signature(LOG.name, LOG.key_id, b"new")
    assert note.adding(renewed).signatures == (note.signatures[1], renewed)


def test_two_known_keys_of_one_name_and_id_are_refused() -> None:
    """Whoever can smuggle in such a key has taken over the list; the same key twice is fine."""
    forged = VerifierKey(LOG.name, OTHER.verifier.public_key)
    object.__setattr__(forged, "key_id", LOG.key_id)
    raw = sign_note(TEXT, LOG).to_bytes()
    with pytest.raises(NoteKeyError):
        open_note(raw, [LOG.verifier, forged])
    assert open_note(raw, [LOG.verifier, LOG.verifier]).text == TEXT


# --- cosignatures ---------------------------------------------------------------------------------

WITNESS_SEED = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
WITNESS = VerifierKey(
    "witness.example/w1", WITNESS_SEED.public_key().public_bytes_raw(), Algorithm.COSIGNATURE
)


def cosign(text: str, timestamp: int) -> Signature:
    raw = WITNESS_SEED.sign(message(timestamp, text.encode()))
    return Signature(WITNESS.name, WITNESS.key_id, Cosignature(timestamp, raw).to_bytes())


def test_what_a_witness_signs_is_the_specifications() -> None:
    """Two lines of its own in front of the checkpoint's text, the time in decimal."""
    assert message(1679315147, b"example.com/behind-the-sofa\n1\nAAAA\n") == (
        b"cosignature/v1\ntime 1679315147\nexample.com/behind-the-sofa\n1\nAAAA\n"
    )


def test_a_cosignature_opens_beside_the_logs_signature() -> None:
    """The witness's line is verified with its own key and says when."""
    raw = sign_note(TEXT, LOG).adding(cosign(TEXT, 1_800_000_000)).to_bytes()
    opened = open_note(raw, [LOG.verifier, WITNESS])
    assert [signature.name for signature in opened.signatures] == [LOG.name, WITNESS.name]
    cosignature = Cosignature.parse(opened.signatures[1].signature)
    assert cosignature is not None
    assert cosignature.timestamp == 1_800_000_000


def test_a_cosignature_of_another_time_or_text_is_refused() -> None:
    """The time is signed, and a plain signature of the witness is no cosignature."""
    good = cosign(TEXT, 1_800_000_000)
    later = Signature(good.name, good.key_id, (1_800_000_001).to_bytes(8) + good.signature[8:])
    endless = Signature(good.name, good.key_id, b"\xff" * 8 + good.signature[8:])
    plain = Signature(good.name, good.key_id, WITNESS_SEED.sign(TEXT.encode()))
    for bad in (later, endless, plain, cosign("another\n", 1_800_000_000), cosign(TEXT, 2**63)):
        raw = sign_note(TEXT, LOG).adding(bad).to_bytes()
        with pytest.raises(NoteSignatureError):
            open_note(raw, [LOG.verifier, WITNESS])


# --- anything at all ------------------------------------------------------------------------------

PIECES = st.sampled_from([b"\n\n", b"\n", "— ".encode(), b"name", b" ", GOOD_LINE.encode(), b"+"])


@given(st.binary() | st.lists(PIECES | st.binary(max_size=9)).map(b"".join))
def test_garbage_raises_a_note_error_or_is_a_note(raw: bytes) -> None:
    """What parses is written back byte for byte; all else is a NoteError."""
    with suppress(NoteError):
        assert Note.parse(raw).to_bytes() == raw


@given(st.text() | st.from_regex(r"(PRIVATE\+KEY\+)?\w+\+[0-9a-f]{8}\+[A-Za-z0-9+/]{44}"))
def test_garbage_is_no_key(text: str) -> None:
    """Whatever the text, the answer is a NoteKeyError: an id fits by a chance of one in 2^32."""
    for kind in (VerifierKey, SignerKey):
        with pytest.raises(NoteKeyError):
            kind.parse(text)


@given(st.text(max_size=12) | st.text("AQgw+/=", max_size=8))
def test_a_value_has_one_base64_and_one_decimal(text: str) -> None:
    """What is read would be written the same way."""
    if (raw := decode_base64(text)) is not None:
        assert encode_base64(raw) == text
    if (number := decode_decimal(text)) is not None:
        assert str(number) == text


def test_a_decimal_has_one_spelling() -> None:
    """No leading zeroes, signs, spaces, underscores or foreign digits; 63 bits at most."""
    assert [decode_decimal(text) for text in ("0", "10", str(2**63 - 1))] == [0, 10, 2**63 - 1]
    bad = ["", "00", "01", "-1", "+1", " 1", "1\n", "1_0", "\u0661", "0x1", str(2**63), "9" * 5000]
    assert [decode_decimal(text) for text in bad] == [None] * len(bad)


def test_a_signature_line_reads_as_the_specification_says() -> None:
    """Em dash, space, key name, space, base64 of key id and signature, newline."""
    assert re.fullmatch(r"— ledger\.example/audit [A-Za-z0-9+/]+=*\n", GOOD_LINE)
