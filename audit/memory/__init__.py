"""The audit memory: :func:`open_memory` finds the backend that a URL names."""

from __future__ import annotations

from audit.errors import MemoryUrlError
from audit.memory.base import AuditMemory

__all__ = ["AuditMemory", "migrate_memory", "open_memory"]

_REDIS_SCHEMES = (
    *("redis", "rediss", "redis+socket"),
    *(f"{scheme}+{kind}" for scheme in ("redis", "rediss") for kind in ("cluster", "sentinel")),
)
_SQL_SCHEMES = ("postgresql", "sqlite")


def open_memory(url: str, *, timeout: float = 2.0) -> AuditMemory:
    """Open the audit memory at ``url``. Nothing is connected before the first call.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``redis+socket://``, ``redis+cluster://``,
            ``redis+sentinel://``, ``postgresql://`` (extra ``postgres``),
            ``sqlite:///FILE`` (extra ``sqlite``); for the parameters see
            :class:`audit.memory.redis.RedisMemory`,
            :class:`audit.memory.sql.postgres.PostgresMemory` and
            :class:`audit.memory.sql.sqlite.SqliteMemory`.
        timeout: seconds any call may take in all.

    Raises:
        MemoryUrlError: no memory is known by that scheme, or a part of the URL is malformed.
    """
    scheme = url.partition("://")[0]
    if scheme in _REDIS_SCHEMES:
        # Imported here, so that an application pays only for the store it uses.
        from audit.memory.redis import RedisMemory

        return RedisMemory(url, timeout=timeout)
    if scheme in _SQL_SCHEMES:
        return _open_sql(scheme, url, timeout)
    # What is no word may be a password in the wrong place.
    named = f"scheme {scheme!r}" if scheme.replace("+", "").isalnum() and scheme != url else "URL"
    known = ", ".join(f"{known}://" for known in (*_REDIS_SCHEMES, *_SQL_SCHEMES))
    raise MemoryUrlError(f"unknown memory {named}: use one of {known}")


def migrate_memory(
    url: str,
    *,
    writer: str | None = None,
    reader: str | None = None,
    tenant: str | None = None,
    row_security: bool | None = None,
    monthly: bool = False,
) -> list[str]:
    """Bring the tables of a memory in PostgreSQL to this release; what was done, line by line.

    See :func:`audit.memory.sql.migration.migrate`.

    Raises:
        MemoryUrlError: no other memory has tables to bring anywhere, or the URL is malformed.
        MemoryUnsuitableError: the tables are of a later release, or cannot be what is asked for.
        MemoryUnavailableError: the database did not answer, or refused.
    """
    if url.partition("://")[0] != "postgresql":
        raise MemoryUrlError("only a memory in PostgreSQL, postgresql://, is migrated")
    try:
        from audit.memory.sql.migration import migrate
    except ModuleNotFoundError as error:
        raise _lacking("postgres", error) from None
    return migrate(
        url,
        writer=writer,
        reader=reader,
        tenant=tenant,
        row_security=row_security,
        monthly=monthly,
    )


def _open_sql(scheme: str, url: str, timeout: float) -> AuditMemory:
    try:
        if scheme == "sqlite":
            from audit.memory.sql.sqlite import SqliteMemory

            return SqliteMemory(url, timeout=timeout)
        from audit.memory.sql.postgres import PostgresMemory
    except ModuleNotFoundError as error:
        raise _lacking("sqlite" if scheme == "sqlite" else "postgres", error) from None
    return PostgresMemory(url, timeout=timeout)


def _lacking(extra: str, error: ModuleNotFoundError) -> MemoryUrlError:
    return MemoryUrlError(
        f"this memory needs {error.name}, which is not installed: install the extra {extra!r} of"
        " skill-host"
    )
