"""Leases and leadership on a Redis or Valkey server.

Keys, each worker's and each role's in a slot of its own::

    PREFIX:{lease:WORKER}:held   string with expiry   the lease
    PREFIX:{lease:WORKER}:seen   string               server time in ms of the last renewal
    PREFIX:{role:ROLE}:leader    string with expiry   who leads
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from audit.memory.connection import Command
from audit.memory.redis_form import number_in

#: How long the last sign of life is kept: as long as anyone may want to close what was abandoned.
SEEN_MS: Final = 30 * 24 * 3_600_000

_HOLD: Final = """
local now = redis.call('TIME')
redis.call('SET', KEYS[2], now[1] * 1000 + math.floor(now[2] / 1000), 'PX', ARGV[2])
redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])
"""
_LEAD: Final = """
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_GIVE_UP: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""


class RedisLeases:
    """Leases, by a function that sends commands, gives raw replies and translates errors.

    Each command may be sent twice and comes to the same.
    """

    def __init__(self, ask: Callable[[Sequence[Command]], Sequence[Any]], prefix: str) -> None:
        self._ask = ask
        self._prefix = prefix

    def hold(self, worker: str, seconds: float) -> None:
        keys = (self._held(worker), self._seen(worker))
        self._one("EVAL", _HOLD, "2", *keys, _milliseconds(seconds), str(SEEN_MS))

    def drop(self, worker: str) -> None:
        self._one("DEL", self._held(worker))

    def held(self, workers: Collection[str]) -> set[str]:
        named = list(workers)
        found = self._ask([("EXISTS", self._held(worker)) for worker in named]) if named else ()
        return {worker for worker, there in zip(named, found, strict=True) if there}

    def seen_ms(self, worker: str) -> int | None:
        """Server time of the last renewal, in milliseconds."""
        seen = self._one("GET", self._seen(worker))
        return None if seen is None else number_in(self._prefix, f"lease:{worker}", seen)

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        leader = self._leader(role)
        return bool(self._one("EVAL", _LEAD, "1", leader, holder, _milliseconds(seconds)))

    def give_up(self, role: str, holder: str) -> None:
        self._one("EVAL", _GIVE_UP, "1", self._leader(role), holder)

    def is_led(self, role: str) -> bool:
        return bool(self._one("EXISTS", self._leader(role)))

    def _one(self, *command: str) -> Any:
        return self._ask([command])[0]

    def _held(self, worker: str) -> str:
        return f"{self._prefix}:{{lease:{worker}}}:held"

    def _seen(self, worker: str) -> str:
        return f"{self._prefix}:{{lease:{worker}}}:seen"

    def _leader(self, role: str) -> str:
        return f"{self._prefix}:{{role:{role}}}:leader"


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
