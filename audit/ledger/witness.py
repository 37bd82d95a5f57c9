"""One witness: asked for its cosignature on a checkpoint, over C2SP tlog-witness.

The witness compares the checkpoint with the last one that it has seen of the log, which takes a
consistency proof from there, and signs if the log has only grown. From then on nobody can show a
cut or forked log to anyone who asks for that signature.

What is guaranteed: an answer counts only as far as the witness's key has signed it, whatever else
it says; :meth:`Witness.cosign` ends after :data:`SECONDS`, however slow or long an answer comes;
no redirect is followed; no error repeats what a witness has sent, but a status and a size.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from audit.errors import NoteError, NoteKeyError, WitnessError, WitnessRefusalError
from audit.ledger.checkpoint import OpenedCheckpoint
from audit.ledger.note import MAX_SIGNATURES, Signature
from audit.ledger.note_key import Algorithm, VerifierKey
from audit.ledger.text import decode_decimal, encode_base64

#: What a witness may take, in all.
SECONDS: Final = 10.0
#: Of an answer; a cosignature line has some 200.
MAX_BYTES: Final = 64_000
_SIZE_TYPE: Final = "text/x.tlog.size"

#: The consistency proof from a size to the checkpoint that is to be cosigned.
Prove = Callable[[int], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the status, the media type, and the beginning of the body."""

    status: int
    media_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Witness:
    """A witness that was agreed on.

    Attributes:
        url: its submission prefix.
        key: what it cosigns with; its name is the witness's.

    Raises:
        NoteKeyError: the key is one that signs logs.
        WitnessError: the URL is none of HTTP.
    """

    url: str
    key: VerifierKey

    def __post_init__(self) -> None:
        if self.key.algorithm is not Algorithm.COSIGNATURE:
            raise NoteKeyError(
                f"{self.key.name} has a key of the kind {self.key.algorithm.name}: a witness has"
                f" one of the kind {Algorithm.COSIGNATURE.name}"
            )
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WitnessError(f"the URL of the witness {self.key.name} is none of http or https")

    @property
    def name(self) -> str:
        return self.key.name

    def cosign(
        self, opened: OpenedCheckpoint, old: int, prove: Prove, *, seconds: float = SECONDS
    ) -> Signature:
        """The witness's signature on a checkpoint, verified.

        Args:
            opened: the checkpoint.
            old: the size that the witness is thought to have seen last; where it names another one,
                it is asked once more, from there.
            prove: the consistency proof from a size.
            seconds: for all of it.

        Raises:
            WitnessRefusalError: it does not cosign.
            WitnessError: it is out of reach, too slow, or its answer is none.
            LedgerError: what ``prove`` raises.
        """
        until = time.monotonic() + seconds
        answer = self._ask(opened, old, prove, until)
        seen = _size_of(answer)
        if seen is not None and seen != old and seen <= opened.checkpoint.size:
            old = seen
            answer = self._ask(opened, old, prove, until)
            seen = _size_of(answer)
        if answer.status != http.HTTPStatus.OK:
            raise self._refusal(opened, old, answer, seen)
        return self._verified(opened, answer)

    # --- inside -------------------------------------------------------------------------------

    def _ask(self, opened: OpenedCheckpoint, old: int, prove: Prove, until: float) -> Answer:
        body = request_body(old, prove(old), opened.note.to_bytes())
        try:
            return _post(f"{self.url.rstrip('/')}/add-checkpoint", body, until)
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = "too slow" if time.monotonic() >= until else "out of reach"
            raise WitnessError(
                f"the witness {self.name} is {late} ({type(error).__name__}); it is asked again"
            ) from error

    def _verified(self, opened: OpenedCheckpoint, answer: Answer) -> Signature:
        """The line of the key that was agreed on; those of others count for nothing."""
        own = [line for line in self._lines(answer) if line.key == (self.name, self.key.key_id)]
        if len(own) != 1:
            raise WitnessError(f"the witness {self.name} has not signed with its key: check both")
        if not self.key.verify(opened.note.text.encode(), own[0].signature):
            raise WitnessError(f"the signature of the witness {self.name} does not hold")
        return own[0]

    def _lines(self, answer: Answer) -> list[Signature]:
        try:
            *lines, rest = answer.body.decode().split("\n")
            if rest or not 1 <= len(lines) <= MAX_SIGNATURES:
                raise NoteError("signature lines end in a newline, and are not too many")
            return [Signature.parse(line) for line in lines]
        except (UnicodeDecodeError, NoteError) as error:
            raise WitnessError(f"the witness {self.name} sent no signature lines") from error

    def _refusal(
        self, opened: OpenedCheckpoint, old: int, answer: Answer, seen: int | None
    ) -> WitnessRefusalError:
        said = _MEANINGS.get(answer.status, "an answer that the protocol does not have")
        size = "" if seen is None else f"; the tree that it has seen has {seen} leaves"
        other_tree = seen is not None and (seen == old or seen > opened.checkpoint.size)
        return WitnessRefusalError(
            f"the witness {self.name} does not cosign: {answer.status}, {said}{size}",
            disagrees=other_tree or answer.status == http.HTTPStatus.UNPROCESSABLE_ENTITY,
            seen=seen,
        )


_MEANINGS: Final = {
    400: "it takes the request for malformed",
    403: "it does not know the key that signed: give it the keys of the meta log",
    404: "it does not know the log: give it the origin of the meta log",
    409: "it has seen another tree of the log",
    422: "it has seen a tree of the log that this one has not grown from",
    429: "it was asked too often",
    500: "it fails",
    503: "it is overloaded",
}


def request_body(old: int, proof: Sequence[bytes], note: bytes) -> bytes:
    """What ``add-checkpoint`` takes."""
    lines = [f"old {old}", *map(encode_base64, proof), ""]
    return "".join(f"{line}\n" for line in lines).encode() + note


def _size_of(answer: Answer) -> int | None:
    """The size that a conflict names; nothing in other answers."""
    if answer.status != http.HTTPStatus.CONFLICT or answer.media_type != _SIZE_TYPE:
        return None
    text = answer.body.decode("ascii", "replace")
    return decode_decimal(text[:-1]) if text.endswith("\n") else None


# --- HTTP -----------------------------------------------------------------------------------------


def _post(url: str, body: bytes, until: float) -> Answer:
    """Send a request and read the answer, of which no more is taken than counts.

    Not :mod:`urllib.request`: it follows redirects, and its time limit begins anew with each byte.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=left)) as connection:
        connection.connect()
        with _cut_off(connection.sock, until):
            headers = {"Content-Type": "text/plain; charset=utf-8", "Connection": "close"}
            connection.request("POST", parts.path, body, headers)
            response = connection.getresponse()
            content = response.read(MAX_BYTES + 1)
    if time.monotonic() >= until:
        raise TimeoutError
    if len(content) > MAX_BYTES:
        raise http.client.HTTPException("too long")
    return Answer(response.status, response.headers.get_content_type(), content)


@contextlib.contextmanager
def _cut_off(sock: socket.socket, until: float) -> Iterator[None]:
    """Ends whatever waits on a socket when the time is over."""

    def end() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
