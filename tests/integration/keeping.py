"""A keeper in the process of the test, for hosts whose leases are short."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from audit.keeper import Keeper
from audit.spool import Spool
from tests.integration.stack import Stack

#: Seconds a lease lasts in these tests.
LEASE = 1.5


@contextlib.contextmanager
def keeper(stack: Stack) -> Iterator[Keeper]:
    """A keeper that goes round in this process."""
    spool = Spool(stack.directory / "spool", stack.memory.name)
    keeper = Keeper(stack.memory, spool, holder="test", lease_seconds=LEASE)
    stop = threading.Event()
    thread = threading.Thread(target=keeper.keep, args=(stop, lambda _: None))
    thread.start()
    try:
        yield keeper
    finally:
        stop.set()
        thread.join()
