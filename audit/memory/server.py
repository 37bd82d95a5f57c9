"""What a Redis or Valkey server says of itself, and whether that is fit for a memory.

A server that may evict keys, that is too old for the script, or that keeps rows less durably than
the URL asks for would lose rows while every emit succeeds. So it gets none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from audit.errors import MemoryUnsuitableError

#: ``server`` takes what the server is configured for.
DURABILITIES: Final = ("server", "everysec", "always")


def judge_server(
    info: Mapping[str, str], fsync: str | None, durability: str, replicas: int = 0
) -> None:
    """Refuse a server that could lose or evict rows.

    Args:
        info: the server's INFO, name to value.
        fsync: its ``appendfsync``; ``None`` where it does not tell.
        durability: one of :data:`DURABILITIES`.
        replicas: how many must acknowledge every row.

    Raises:
        MemoryUnsuitableError: the text says what to change.
    """
    _judge_version(info)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise MemoryUnsuitableError(
            f"the memory server may evict rows: maxmemory-policy is {policy}, set it to noeviction"
        )
    if durability != "server":
        _judge_durability(info, fsync, durability)
    attached = int(info.get("connected_slaves", "0"))
    if attached < replicas:
        raise MemoryUnsuitableError(
            f"the memory URL asks for replicas={replicas}, but the server has {attached}: attach"
            " replicas to it (replicaof), or ask for fewer"
        )


def _judge_version(info: Mapping[str, str]) -> None:
    name, version, least = "Redis", info.get("redis_version", "0"), (7, 0)
    if "valkey_version" in info:
        name, version, least = "Valkey", info["valkey_version"], (8, 0)
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < least:
        raise MemoryUnsuitableError(
            f"the memory server is too old: {name} {version}, needed are Redis 7.0 or Valkey 8"
        )


def _judge_durability(info: Mapping[str, str], fsync: str | None, durability: str) -> None:
    if info.get("aof_enabled") != "1":
        raise MemoryUnsuitableError(
            f"the memory URL asks for durability={durability}, but the server keeps no AOF: set"
            f" appendonly yes and appendfsync {durability}"
        )
    enough = ("always",) if durability == "always" else ("always", "everysec")
    if fsync not in enough:
        told = "does not tell (CONFIG GET is refused)" if fsync is None else f"has {fsync}"
        raise MemoryUnsuitableError(
            f"the memory URL asks for durability={durability}, but the server {told}: set"
            f" appendfsync {durability}"
        )


def parse_info(reply: bytes) -> dict[str, str]:
    """INFO's text, name to value."""
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def config_value(reply: Any) -> str | None:
    """The value in CONFIG GET's reply; ``None`` where the server does not tell."""
    if isinstance(reply, list) and len(reply) == 2:
        return str(reply[1].decode())
    return None
