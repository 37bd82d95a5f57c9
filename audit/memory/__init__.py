"""The audit memory: :func:`open_memory` finds the backend that a URL names."""

from __future__ import annotations

from audit.errors import MemoryUrlError
from audit.memory.base import AuditMemory

__all__ = ["AuditMemory", "open_memory"]

_REDIS_SCHEMES = ("redis", "rediss", "redis+socket")


def open_memory(url: str, *, timeout: float = 2.0) -> AuditMemory:
    """Open the audit memory at ``url``. Nothing is connected before the first call.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``redis+socket://``; see
            :class:`audit.memory.redis.RedisMemory` for the parameters.
        timeout: seconds any call may take in all.

    Raises:
        MemoryUrlError: no memory is known by that scheme, or a part of the URL is malformed.
    """
    scheme = url.partition("://")[0]
    if scheme in _REDIS_SCHEMES:
        # Imported here, so that an application pays only for the store it uses.
        from audit.memory.redis import RedisMemory

        return RedisMemory(url, timeout=timeout)
    if scheme == "sqlite":
        from audit.memory.sql.sqlite import SqliteMemory

        return SqliteMemory(url, timeout=timeout)
    if scheme in ("postgresql", "postgres"):
        from audit.memory.sql.postgres import PostgresMemory

        return PostgresMemory(url, timeout=timeout)
    # What is no word may be a password in the wrong place.
    named = f"scheme {scheme!r}" if scheme.replace("+", "").isalnum() and scheme != url else "URL"
    raise MemoryUrlError(
        f"unknown memory {named}: use one of {', '.join(f'{known}://' for known in _REDIS_SCHEMES)}"
    )
