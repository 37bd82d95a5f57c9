"""Writers side by side, and what each of them was told of its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from audit.errors import AuditMemoryError
from audit.memory import open_memory
from audit.row import AuditRow
from tests.support import completed, make_identity, started

WRITERS = 3


@dataclass
class Writer:
    """One invocation after the other, for the tenants in turn.

    Attributes:
        acknowledged: the rows that an emit returned for.
        failed: what an emit raised; its invocation goes no further.
    """

    url: str
    tenants: Sequence[str]
    timeout: float
    acknowledged: list[AuditRow] = field(default_factory=list)
    failed: list[AuditMemoryError] = field(default_factory=list)

    def write(self, go_on: Callable[[], bool]) -> None:
        memory = open_memory(self.url, timeout=self.timeout)
        number = 0
        while go_on():
            identity = make_identity(tenant_id=self.tenants[number % len(self.tenants)])
            number += 1
            try:
                for row in (started(identity), completed(identity)):
                    memory.emit(row)
                    self.acknowledged.append(row)
            except AuditMemoryError as error:
                self.failed.append(error)
        memory.close()


@contextmanager
def writing(
    url: str, tenants: Sequence[str], *, timeout: float = 10, writers: int = WRITERS
) -> Iterator[list[Writer]]:
    """Writers at work meanwhile; behind the block they have ended."""
    over = threading.Event()
    made = [Writer(url, tenants, timeout) for _ in range(writers)]
    threads = [
        threading.Thread(target=writer.write, args=(lambda: not over.is_set(),)) for writer in made
    ]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        over.set()
        for thread in threads:
            thread.join()


def acknowledged(writers: Sequence[Writer]) -> list[AuditRow]:
    return [row for writer in writers for row in writer.acknowledged]


def failed(writers: Sequence[Writer]) -> list[AuditMemoryError]:
    return [error for writer in writers for error in writer.failed]
