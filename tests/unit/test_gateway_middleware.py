"""tasks/gateway_middleware.py: what nobody foresaw is answered, and tells nobody what was sent."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from tasks.gateway_middleware import GatewayMiddleware

SECRET = "s3cret-Zanzibar-4711"


def served(app: Any, path: str = "/") -> list[Message]:
    """The messages that a request is answered with."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    asyncio.run(GatewayMiddleware(app)(scope, receive, send))
    return sent


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise KeyError(SECRET)


async def fails_late(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise KeyError(SECRET)


def test_an_unforeseen_error_shows_its_type_alone(caplog: pytest.LogCaptureFixture) -> None:
    """500 as every problem is; the log has type and code lines, and no text of the error."""
    with caplog.at_level(logging.DEBUG):
        start, body = served(fails)
    assert start["status"] == 500
    assert json.loads(body["body"])["fault"] == "internal"
    assert "KeyError" in caplog.text
    assert "in fails" in caplog.text
    assert SECRET not in caplog.text + str(body)


def test_an_answer_that_has_begun_is_not_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so all the same."""
    with caplog.at_level(logging.DEBUG):
        assert len(served(fails_late)) == 1
    assert "KeyError" in caplog.text
