"""Waits until nothing is left to do: then what is still open will stay so."""

from __future__ import annotations

import time
from typing import Any, Final

import redis

from audit.memory import AuditMemory
from audit.spool import Spool
from chaos.place import Place
from chaos.skills import QUEUE

#: Seconds in which something of what is left must get done, with everyone up.
DEADLINE: Final = 60.0
#: Seconds until quiet must have come, however slow the machine.
LAST_DEADLINE: Final = 1800.0
INSPECT_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.2


class Quiet:
    """What a host still has to do."""

    def __init__(self, place: Place, memory: AuditMemory, spool: Spool, control: Any) -> None:
        self._broker: Any = redis.Redis.from_url(place.broker, socket_timeout=10)
        self._memory = memory
        self._spool = spool
        self._control = control

    def wait(self, workers: int) -> list[str]:
        """Wait; what is left when nothing of it gets done any more, and nothing if all is well."""
        began = changed = time.monotonic()
        before: list[str] = []
        while left := self._left(workers):
            now = time.monotonic()
            changed, before = (changed, before) if left == before else (now, left)
            if now > min(changed + DEADLINE, began + LAST_DEADLINE):
                break
            time.sleep(LOOK_SECONDS)
        self._broker.close()
        return left

    def _left(self, workers: int) -> list[str]:
        """The cheap questions first: workers are asked only when nothing else is left."""
        counts = {
            "messages wait": self._broker.llen(QUEUE),
            "messages are unacknowledged": self._broker.hlen("unacked"),
            "rows are in the spool": self._spool.usage().rows,
            "invocations are open": sum(1 for _ in self._memory.running()),
        }
        left = [f"{count} {what}" for what, count in counts.items() if count]
        return left or self._active(workers)

    def _active(self, workers: int) -> list[str]:
        replies = self._control.inspect(timeout=INSPECT_SECONDS).active() or {}
        left = [f"{len(tasks)} run on {name}" for name, tasks in replies.items() if tasks]
        if len(replies) < workers:
            left.append(f"{workers - len(replies)} workers do not answer")
        return left
