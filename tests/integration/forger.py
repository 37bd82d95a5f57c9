"""Whoever can write to the broker: takes a message out, changes what it says, and puts it back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import redis

from tests.integration.stack import Stack
from tests.support import wait_until

#: A queue that no worker takes messages from.
HELD = "held"


class Message:
    """One message as it lies in the broker."""

    def __init__(self, envelope: dict[str, Any]) -> None:
        self.envelope = envelope

    @property
    def headers(self) -> dict[str, Any]:
        headers: dict[str, Any] = self.envelope["headers"]
        return headers

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.envelope["body"])

    @body.setter
    def body(self, raw: bytes) -> None:
        self.envelope["body"] = base64.b64encode(raw).decode()

    def edit(self, change: Callable[[Any], Any]) -> None:
        """Change the arguments and what is embedded beside them."""
        body = json.loads(self.body)
        change(body)
        self.body = json.dumps(body).encode()


class Forger:
    """A plain client of the broker."""

    def __init__(self, stack: Stack) -> None:
        self._client = redis.Redis.from_url(stack.server.url_for(0))

    def take(self) -> Message:
        """The one message that is held."""
        raw = wait_until(lambda: self._client.rpop(HELD))
        assert self._client.llen(HELD) == 0
        return Message(json.loads(raw))  # type: ignore[arg-type]

    def put(self, message: Message, queue: str = "skills") -> str:
        """Send it to the workers; its task id."""
        self._client.lpush(queue, json.dumps(message.envelope))
        return str(message.headers["id"])

    def close(self) -> None:
        self._client.close()
