"""What a transport hands over, whatever lies in the broker: a message, or one marked unreadable.

kombu makes messages of what its virtual transports (Redis, ...) read, before a consumer sees any of
it, and stumbles over what has no form of a message. Such a thing becomes an empty message with an
error, which kombu gives to the consumer's ``on_decode_error``, and that acknowledges it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from uuid import uuid4

from kombu.exceptions import DecodeError
from kombu.transport import virtual

logger: Final = logging.getLogger("audit")

#: What code raises that gets something of another kind than it reckons with.
STUMBLES: Final = (
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


def take_anything(channel: Any) -> None:
    """Let a channel hand over whatever it reads; channels of other transports are left alone."""
    if issubclass(getattr(channel, "Message", object), virtual.Message):
        channel.Message = _readable(channel.Message)
    if "BRPOP" in (getattr(channel, "handlers", None) or {}):
        _read_on(channel)


class _Readable:
    """The mark of what :func:`_readable` made."""


@cache
def _readable(kind: type) -> type:
    if issubclass(kind, _Readable):
        return kind

    class Readable(_Readable, kind):
        """A message; of what is none, an empty one that says so."""

        def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
            try:
                super().__init__(payload, channel=channel, **options)
                _check(self)
            except STUMBLES as error:
                super().__init__(_nothing(), channel=channel, **options)
                unreadable = DecodeError(f"no message: {type(error).__name__}")
                self.errors = [(DecodeError, unreadable, None)]

    return Readable


def _check(message: Any) -> None:
    """Look at what is used of a message to keep account of it.

    Raises:
        TypeError, KeyError: there is no such thing.
    """
    where = message.delivery_info
    if not (
        isinstance(message.headers, Mapping)
        and all(isinstance(part, str) for part in (message.delivery_tag, where["routing_key"]))
    ):
        raise TypeError
    _ = where["exchange"]


def _nothing() -> dict[str, Any]:
    delivery = {"exchange": "", "routing_key": ""}
    return {"properties": {"delivery_tag": str(uuid4()), "delivery_info": delivery}, "body": ""}


def _read_on(channel: Any) -> None:
    """Let a Redis channel go on after what it read is not even JSON, and so was no message."""
    read, transport = channel.handlers["BRPOP"], channel.connection
    if getattr(read, "reads_on", False):
        return
    deliver, delivered = transport._deliver, False

    def delivering(*args: Any, **kwargs: Any) -> Any:
        nonlocal delivered
        delivered = True
        return deliver(*args, **kwargs)

    def reading(*args: Any, **kwargs: Any) -> Any:
        nonlocal delivered
        delivered = False
        try:
            return read(*args, **kwargs)
        except STUMBLES as error:
            if delivered or channel.client.connection is None:
                raise
            logger.error("deleted what is no message (%s)", type(error).__name__)
            return True

    transport._deliver, reading.reads_on = delivering, True  # type: ignore[attr-defined]
    channel.handlers["BRPOP"] = reading
