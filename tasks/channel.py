"""A client of the broker that a worker's channel keeps, where kombu makes one for each message.

kombu's Redis channel makes a client, with a table of some two hundred commands, whenever it notes
that a message was taken, and again when it was done: a sixth of what a task costs the worker's main
process, which is what a prefork worker has least of. One client of the same pool does the same.
Decision 26.
"""

from __future__ import annotations

from typing import Any

from tasks.noting import note_quickly


def keep_client(channel: Any) -> None:
    """Let a Redis channel use one client as long as its pool lives; all others are left alone."""
    make = getattr(channel, "_create_client", None)
    if make is None or hasattr(make, "kept"):
        return
    kept: Any = None

    def client_of(asynchronous: bool = False) -> Any:
        nonlocal kept
        if asynchronous:
            return make(asynchronous=True)
        if kept is None or kept.connection_pool is not channel.pool:
            kept = make()
            note_quickly(kept)
        return kept

    client_of.kept = True  # type: ignore[attr-defined]
    channel._create_client = client_of
