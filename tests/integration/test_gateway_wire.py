"""What goes over the wire before the gateway has a request: bytes, and lengths that disagree."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.integration.gateway import TOKEN, gateway_of
from tests.integration.stack import PERSONA, running_stack
from tests.support import TENANT

HEAD = (
    "POST /v1/skills/test.effect HTTP/1.1\r\nHost: gateway\r\n"
    f"Authorization: Bearer {TOKEN}\r\nX-Audit-Tenant: {TENANT}\r\nX-Audit-Persona: {PERSONA}\r\n"
    "Content-Type: application/json\r\n"
)
BODY = '{"mark": "smuggled"}'


def answered(port: int, sent: str) -> str:
    """All that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(sent.encode())
        return b"".join(iter(lambda: line.recv(65_536), b"")).decode()


def test_two_lengths_are_no_request(tmp_path: Path) -> None:
    """A proxy may have gone by the other one: 400, the rest of the connection is not read."""
    chunked = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"
    lengths = f"Content-Length: {len(BODY)}\r\nTransfer-Encoding: chunked\r\n\r\n"
    behind = f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n{BODY}"
    with running_stack(tmp_path) as stack, gateway_of(stack) as gateway:
        answer = answered(gateway.port, HEAD + lengths + chunked + behind)
        assert answer.startswith("HTTP/1.1 400 ")
        assert answer.count("HTTP/1.1 ") == 1
        assert "malformed_body" in answer
        assert gateway.call("test.effect", {"mark": "whole"}).status == 202
        stack.worker("solo", 1)
        assert gateway.call("test.effect", {"mark": "last"}, wait=20).status == 200
        assert stack.journal() == ["whole", "last"]
