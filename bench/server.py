"""How the bench speaks to its server: one client a database, with a deadline on every call."""

from __future__ import annotations

from typing import Any

import redis


def client(url: str) -> Any:
    """A client of the database at ``url``. (redis-py types every reply as one of two.)"""
    return redis.Redis.from_url(url, socket_timeout=10, socket_connect_timeout=10)


def seconds_of_cpu(server: Any) -> float:
    """CPU time that the server has used so far, in microsecond resolution."""
    used = server.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])
