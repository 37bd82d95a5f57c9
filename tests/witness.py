"""A witness for tests that can be told to answer anything, and at any pace; on 127.0.0.1 only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.ledger.checkpoint import Checkpoint
from audit.ledger.cosignature import Cosignature, message
from audit.ledger.merkle import EMPTY_ROOT, verify_consistency
from audit.ledger.note import Note, Signature
from audit.ledger.note_key import Algorithm, VerifierKey
from audit.ledger.text import decode_base64

SIZE = "text/x.tlog.size"
Answer = tuple[int, str, bytes]


@dataclass
class FakeWitness:
    """Keeps the rules, until ``answers`` has something else to say, which is used up one by one."""

    name: str = "witness.example/w1"
    seed: bytes = b"w" * 32
    time: int = 1_800_000_000
    url: str = ""
    seen: tuple[int, bytes] = (0, EMPTY_ROOT)
    asked: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    @property
    def key(self) -> VerifierKey:
        public = Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()
        return VerifierKey(self.name, public, Algorithm.COSIGNATURE)

    def line(self, text: str, **changed: Any) -> str:
        signed = message(self.time, text.encode())
        signature = Ed25519PrivateKey.from_private_bytes(self.seed).sign(signed)
        raw = Cosignature(self.time, signature).to_bytes()
        name = changed.get("name", self.name)
        return Signature(name, changed.get("key_id", self.key.key_id), raw).to_line()

    def answer(self, body: bytes) -> Answer:
        head, _, raw = body.partition(b"\n\n")
        old_line, *proof = head.decode().split("\n")
        old = int(old_line.removeprefix("old "))
        text = Note.parse(raw).text
        asked = Checkpoint.parse(text)
        size, root = self.seen
        if old != size:
            return 409, SIZE, b"%d\n" % size
        hashes = [decode_base64(line) or b"" for line in proof]
        if old:
            verify_consistency(old, root, asked.size, asked.root, hashes)
        else:
            assert not hashes
        self.seen = asked.size, asked.root
        return 200, "text/plain", self.line(text).encode()


def _handler(witness: FakeWitness) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            witness.asked.append(body)
            witness.paths.append(self.path)
            answer = witness.answers.pop(0) if witness.answers else witness.answer
            if callable(answer):
                answer = answer(self if answer != witness.answer else body)
            if answer is None:
                return
            status, kind, content = answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever is cut off by a client is no fault here."""


@contextmanager
def serving(witness: FakeWitness) -> Iterator[FakeWitness]:
    """The witness, reachable at its ``url``."""
    server = _Server(("127.0.0.1", 0), _handler(witness))
    witness.url = f"http://127.0.0.1:{server.server_port}/prefix"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield witness
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def dripping(stop: threading.Event, byte: bytes = b"x") -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer that begins, and then comes byte by byte until nobody listens any more."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not stop.wait(0.01):
            handler.wfile.write(byte)

    return answer
