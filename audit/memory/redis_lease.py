"""Leases and leadership on a Redis or Valkey server.

Keys, each worker's and each role's in a slot of its own::

    PREFIX:{lease:WORKER}:held   string with expiry   the lease
    PREFIX:{lease:WORKER}:seen   string               server time in ms of the last renewal
    PREFIX:{role:ROLE}:leader    string with expiry   who leads
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

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
    """Leases, by a function that sends one command and translates errors."""

    def __init__(self, ask: Callable[..., Any], prefix: str) -> None:
        self._ask = ask
        self._prefix = prefix

    def hold(self, worker: str, seconds: float) -> None:
        keys = (self._held(worker), self._seen(worker))
        self._ask("eval", _HOLD, 2, *keys, _milliseconds(seconds), SEEN_MS)

    def drop(self, worker: str) -> None:
        self._ask("delete", self._held(worker))

    def held(self, workers: Collection[str]) -> set[str]:
        return {worker for worker in workers if self._ask("exists", self._held(worker))}

    def seen_ms(self, worker: str) -> int | None:
        """Server time of the last renewal, in milliseconds."""
        seen = self._ask("get", self._seen(worker))
        return None if seen is None else number_in(self._prefix, f"lease:{worker}", seen)

    def lead(self, role: str, holder: str, seconds: float) -> bool:
        leads = self._ask("eval", _LEAD, 1, self._leader(role), holder, _milliseconds(seconds))
        return bool(leads)

    def give_up(self, role: str, holder: str) -> None:
        self._ask("eval", _GIVE_UP, 1, self._leader(role), holder)

    def is_led(self, role: str) -> bool:
        return bool(self._ask("exists", self._leader(role)))

    def _held(self, worker: str) -> str:
        return f"{self._prefix}:{{lease:{worker}}}:held"

    def _seen(self, worker: str) -> str:
        return f"{self._prefix}:{{lease:{worker}}}:seen"

    def _leader(self, role: str) -> str:
        return f"{self._prefix}:{{role:{role}}}:leader"


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
