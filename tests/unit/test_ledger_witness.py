"""audit/ledger/witness.py: what an answer of a witness is worth, whatever it says."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from audit.errors import AuditError, NoteKeyError, ProofError, WitnessError, WitnessRefusalError
from audit.ledger.checkpoint import Checkpoint as Tree
from audit.ledger.checkpoint import OpenedCheckpoint, open_checkpoint
from audit.ledger.merkle import consistency_proof, leaf_hash, node_hash
from audit.ledger.note import Note
from audit.ledger.note_key import SignerKey
from audit.ledger.witness import MAX_BYTES, Witness, request_body
from tests.naive_merkle import NaiveTree
from tests.witness import SIZE, FakeWitness, dripping, serving

LOG = SignerKey("log.example/meta", b"s" * 32)
TREE = NaiveTree([b"row %d" % number for number in range(20)])


def signed(size: int = 20) -> OpenedCheckpoint:
    note = Tree(LOG.name, size, TREE.mth(0, size)).sign(LOG)
    return open_checkpoint(note.to_bytes(), LOG.name, [LOG.verifier])


def prove(old: int) -> list[bytes]:
    return consistency_proof(old, 20, lambda level, i: TREE.mth(i << level, (i + 1) << level))


def cosign(fake: FakeWitness, old: int = 0, seconds: float = 10.0) -> Any:
    return Witness(fake.url, fake.key).cosign(signed(), old, prove, seconds=seconds)


@pytest.fixture
def fake() -> Iterator[FakeWitness]:
    with serving(FakeWitness()) as witness:
        yield witness


def test_a_witness_cosigns(fake: FakeWitness) -> None:
    """Its line, added to the checkpoint, opens with its key; the request is the one of C2SP."""
    line = cosign(fake)
    note = signed().note.adding(line)
    opened = open_checkpoint(note.to_bytes(), LOG.name, [LOG.verifier], [fake.key])
    assert [(c.witness, c.timestamp) for c in opened.cosigned] == [(fake.key, fake.time)]
    assert fake.paths == ["/prefix/add-checkpoint"]
    assert fake.asked == [b"old 0\n\n" + signed().note.to_bytes()]


def test_the_request_has_the_form_of_the_specification() -> None:
    """Old size, a line of base64 for each hash, an empty line, the checkpoint as it is."""
    body = request_body(7, [bytes(32), b"\xff" * 32], b"note\n")
    assert body == b"old 7\n" + b"A" * 43 + b"=\n" + b"/" * 42 + b"8=\n\nnote\n"


@pytest.mark.parametrize("seen", range(1, 21))
def test_a_conflict_is_asked_again_from_the_size_it_names(fake: FakeWitness, seen: int) -> None:
    """The second request has the consistency proof from there, which the witness verifies."""
    fake.seen = seen, TREE.mth(0, seen)
    assert cosign(fake).name == fake.name
    assert [body.split(b"\n")[0] for body in fake.asked] == [b"old 0", b"old %d" % seen]


def test_a_second_conflict_is_the_end(fake: FakeWitness) -> None:
    """A witness that names another size each time is asked twice, not for ever; no alarm."""
    fake.answers = [(409, SIZE, b"5\n"), (409, SIZE, b"6\n"), (409, SIZE, b"7\n")]
    with pytest.raises(WitnessRefusalError) as caught:
        cosign(fake)
    assert (len(fake.asked), caught.value.seen, caught.value.disagrees) == (2, 6, False)


@pytest.mark.parametrize(("named", "old"), [(b"21\n", 0), (b"999\n", 20), (b"20\n", 20)])
def test_another_tree_is_an_alarm(fake: FakeWitness, named: bytes, old: int) -> None:
    """A larger tree, or one as large with another root: said so, and not asked again."""
    fake.answers = [(409, SIZE, named)]
    with pytest.raises(WitnessRefusalError) as caught:
        cosign(fake, old)
    assert (len(fake.asked), caught.value.seen) == (1, int(named))
    assert caught.value.disagrees


@pytest.mark.parametrize(
    ("status", "alarm"),
    [
        *((status, 0) for status in (400, 401, 403, 404, 413, 429, 500, 503)),
        *((status, 0) for status in (201, 204, 301, 302, 307)),
        (422, 1),
    ],
)
def test_every_other_status_is_a_refusal(fake: FakeWitness, status: int, alarm: int) -> None:
    """Named with its status, whatever stands in the body; only a bad consistency is an alarm."""
    good = fake.line(signed().note.text).encode()
    fake.answers = [(status, "text/plain", b"" if status == 204 else good)]
    with pytest.raises(WitnessRefusalError, match=rf"{fake.name} does not cosign: {status},") as c:
        cosign(fake)
    assert (c.value.disagrees, c.value.seen, len(fake.asked)) == (bool(alarm), None, 1)


@pytest.mark.parametrize(
    "body", [b"5", b"05\n", b"-1\n", b"5\n5\n", b"x\n", b"", b"9" * 30 + b"\n"]
)
def test_a_conflict_without_a_size_is_no_answer(fake: FakeWitness, body: bytes) -> None:
    """A size has one spelling; anything else is not asked again, and is no alarm."""
    fake.answers = [(409, SIZE, body)]
    with pytest.raises(WitnessRefusalError) as caught:
        cosign(fake)
    assert (len(fake.asked), caught.value.seen, caught.value.disagrees) == (1, None, False)


def test_a_size_of_another_media_type_is_none(fake: FakeWitness) -> None:
    """What a proxy sends in the place of a witness is not taken for a size."""
    fake.answers = [(409, "text/html", b"5\n")]
    with pytest.raises(WitnessRefusalError):
        cosign(fake)
    assert len(fake.asked) == 1


def bad_lines(fake: FakeWitness) -> dict[str, bytes]:
    text = signed().note.text
    good, other = fake.line(text), FakeWitness(seed=b"o" * 32)
    raw = good.encode()
    return {
        "of another checkpoint": fake.line(signed(19).note.text).encode(),
        "under another name": fake.line(text, name="witness.example/w2").encode(),
        "under another id": fake.line(text, key_id=b"1234").encode(),
        "of another key with this id": other.line(text, key_id=fake.key.key_id).encode(),
        "of another key": other.line(text).encode(),
        "twice": raw + raw,
        "the log's own": signed().note.signatures[0].to_line().encode(),
        "nothing": b"",
        "no newline": raw[:-1],
        "more behind it": raw + b"garbage\n",
        "less than a line behind it": raw + b"garbage",
        "no dash": raw.replace("\N{EM DASH}".encode(), b"-"),
        "no text": b"\xff\xfe\n",
        "bytes": bytes(range(256)),
        "an empty line": b"\n" + raw,
        "too many": raw + other.line(text).encode() * 100,
        "too long": raw + other.line(text).encode() * (MAX_BYTES // 150),
    }


@pytest.mark.parametrize("what", list(bad_lines(FakeWitness())))
def test_only_the_signature_that_was_agreed_on_counts(fake: FakeWitness, what: str) -> None:
    """Another checkpoint, name, id, key, or garbage: an error that repeats nothing of it."""
    fake.answers = [(200, "text/plain", bad_lines(fake)[what])]
    with pytest.raises(WitnessError) as caught:
        cosign(fake)
    assert not re.search("garbage|[A-Za-z0-9+/=]{40}", str(caught.value))


def test_lines_of_unknown_keys_are_ignored(fake: FakeWitness) -> None:
    """A witness may sign with further keys, of which nothing is known here."""
    text = signed().note.text
    more = FakeWitness(seed=b"o" * 32).line(text) + fake.line(text)
    fake.answers = [(200, "text/plain", more.encode())]
    assert cosign(fake).key == (fake.name, fake.key.key_id)


@pytest.mark.parametrize("byte", [b"x", b"\r\n"])
def test_a_slow_answer_is_cut_off(fake: FakeWitness, byte: bytes) -> None:
    """However long it drips, within a header or headers without end, the time holds."""
    with_end = threading.Event()
    fake.answers = [dripping(with_end, byte if byte == b"x" else b"\r\nX: ")]
    began = time.monotonic()
    with pytest.raises(WitnessError):
        cosign(fake, seconds=0.3)
    with_end.set()
    assert time.monotonic() - began < 5


def test_a_silent_witness_is_cut_off() -> None:
    """Who takes the connection and says nothing is too slow, and is named."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fake = FakeWitness(url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(WitnessError, match="w1 is too slow"):
            cosign(fake, seconds=0.2)


def test_the_time_is_that_of_both_requests(fake: FakeWitness) -> None:
    """A conflict and a silence share one limit."""
    stop = threading.Event()
    fake.answers = [(409, SIZE, b"5\n"), dripping(stop)]
    began = time.monotonic()
    with pytest.raises(WitnessError):
        cosign(fake, seconds=0.3)
    stop.set()
    assert time.monotonic() - began < 5


def test_a_huge_answer_is_not_read(fake: FakeWitness) -> None:
    """An answer without end is left when it is longer than any could be, and not when time is."""
    sent: list[int] = []
    left = threading.Event()

    def flood(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while not left.is_set():
                sent.append(handler.wfile.write(b"x" * 65_536))
        finally:
            left.set()

    fake.answers = [flood]
    with pytest.raises(WitnessError):
        cosign(fake)
    assert left.wait(20)
    assert sum(sent) < 50 << 20  # what lies in buffers of the two ends


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 abc\r\n\r\n", b"\x00" * 70_000, b"SSH-2.0-x\r\n"])
def test_what_is_no_http_is_no_answer(fake: FakeWitness, said: bytes) -> None:
    """Another protocol, or an end at once, is an error of ours."""
    fake.answers = [lambda handler: handler.wfile.write(said) and None]
    with pytest.raises(WitnessError, match="out of reach"):
        cosign(fake)


def test_nobody_there_is_an_error_of_ours() -> None:
    """A refused connection and a name that does not exist, and nothing raises but that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "http://nowhere.invalid", f"https://127.0.0.1:{port}"):
        with pytest.raises(WitnessError, match="out of reach"):
            cosign(FakeWitness(url=url), seconds=2)


def test_a_redirect_is_not_followed(fake: FakeWitness) -> None:
    """A witness cannot have the keeper ask somebody else."""
    with serving(FakeWitness()) as other:

        def redirect(handler: Any) -> None:
            handler.send_response(307)
            handler.send_header("Location", f"{other.url}/add-checkpoint")
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        fake.answers = [redirect]
        with pytest.raises(WitnessRefusalError, match="307"):
            cosign(fake)
        assert other.asked == []


def test_what_the_log_cannot_prove_is_not_sent(fake: FakeWitness) -> None:
    """An error of the proof comes out as it is."""
    with pytest.raises(ProofError):
        cosign(fake, old=21)
    assert fake.asked == []


def test_the_key_must_be_one_of_a_witness() -> None:
    """A log's key would never verify a cosignature: refused at once."""
    with pytest.raises(NoteKeyError, match="ED25519: a witness has"):
        Witness("http://127.0.0.1:1", LOG.verifier)


@pytest.mark.parametrize(
    "url", ["", "witness.example", "ftp://x/", "file:///etc/passwd", "http://"]
)
def test_the_url_must_be_one_of_http(url: str) -> None:
    """Anything else is refused at once, and not repeated."""
    with pytest.raises(AuditError, match="none of http or https"):
        Witness(url, FakeWitness().key)


def test_the_naive_tree_is_rfc_6962s() -> None:
    """What these tests prove with hashes as it should."""
    assert TREE.mth(0, 2) == node_hash(leaf_hash(b"row 0"), leaf_hash(b"row 1"))
    assert Note.parse(signed().note.to_bytes()) == signed().note
