"""Makes the tables of a memory in PostgreSQL, and brings older ones up to date."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import errors, sql

from audit.errors import MemoryUnavailableError, MemoryUnsuitableError
from audit.memory.sql.roles import Roles
from audit.memory.sql.schema import VERSION, ddl
from audit.memory.sql.url import parse_postgres

#: Two migrations at once wait for each other; the number is arbitrary.
_ONE_AT_A_TIME: Final = 0x61756474


def migrate(
    url: str,
    *,
    writer: str | None = None,
    reader: str | None = None,
    tenant: str | None = None,
    row_security: bool | None = None,
    monthly: bool = False,
    timeout: float = 60.0,
) -> list[str]:
    """Bring the memory at ``url`` to this release's tables; what was done, a sentence each.

    Done in one transaction, so that it is done whole or not at all; again is safe.

    Args:
        url: of a user who may create the schema, or owns it.
        writer: a role that may emit, lease, seal and trim from now on, by the functions for it and
            in no other way.
        reader: a role that may read from now on.
        tenant: binds both roles to it, by row security; the writer cannot lead, seal or trim then.
        row_security: turns it on or off; ``None`` leaves it as it is.
        monthly: the rows get a partition for each month; only when the tables are made.
        timeout: seconds to wait for locks and for each statement.

    Raises:
        MemoryUrlError: the URL has a part that cannot be used.
        MemoryUnsuitableError: the tables are of a later release, there are some without
            partitions, or a role cannot be bound.
        MemoryUnavailableError: the database did not answer, or refused.
    """
    parsed = parse_postgres(url)
    try:
        with psycopg.connect(parsed.conninfo, connect_timeout=max(2, int(timeout))) as connection:
            connection.execute(f"SET statement_timeout = {round(timeout * 1000)}")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_AT_A_TIME,))
            done = _migrate(connection, parsed.schema, monthly=monthly)
            roles = Roles(connection, parsed.schema)
            if row_security is not None:
                done += roles.secure() if row_security else roles.release()
            for role, writes in ((reader, False), (writer, True)):
                if role is not None:
                    done.append(roles.let_in(role, writes=writes, tenant=tenant))
            return done
    except psycopg.Error as error:
        first_line = str(error).strip().partition("\n")[0]
        raise MemoryUnavailableError(f"memory {parsed.shown}: {first_line}") from error


def _migrate(connection: psycopg.Connection[Any], schema: str, *, monthly: bool) -> list[str]:
    named = sql.Identifier(schema)
    # IF NOT EXISTS wants the right to create one all the same.
    if not connection.execute(
        "SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)
    ).fetchone():
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(named))
    # The functions keep this path. Temporary tables come first unless it names them: a role could
    # put one of its own in the place of ours, and have its triggers run with the owner's rights.
    connection.execute(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(named))
    try:
        with connection.transaction():
            found = connection.execute("SELECT version FROM audit_settings").fetchone()
    except errors.UndefinedTable:
        connection.execute(ddl("postgres").encode())
        if monthly:
            connection.execute(ddl("months").encode())
        connection.execute(
            sql.SQL("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {} FROM PUBLIC").format(named)
        )
        parts = ", with a partition for each month" if monthly else ""
        return [f"tables of version {VERSION} were made in the schema {schema}{parts}"]
    version = 0 if found is None else found[0]
    if version != VERSION:
        raise MemoryUnsuitableError(
            f"the schema {schema} has tables of version {version}, and this release is for"
            f" {VERSION}: use the release that fits"
        )
    return [*_catch_up(connection), *_tend_months(connection, schema, wanted=monthly)]


def _tend_months(connection: psycopg.Connection[Any], schema: str, *, wanted: bool) -> list[str]:
    """Remove past months that trimming has emptied."""
    parted = "SELECT relkind = 'p' FROM pg_class WHERE oid = 'audit_rows'::regclass"
    if connection.execute(parted).fetchone() == (True,):
        gone = connection.execute("SELECT audit_drop_empty_months()").fetchall()
        return [f"{name}, in which no row was left, was removed" for (name,) in gone]
    if wanted:
        raise MemoryUnsuitableError(
            f"the schema {schema} has tables without partitions, which are made with the tables"
            " only: name another schema in the URL, make them there, and copy the rows"
        )
    return []


def _catch_up(connection: psycopg.Connection[Any]) -> list[str]:
    """After a restore into another cluster its transaction ids may be smaller than the rows'."""
    raised = connection.execute(
        """
        UPDATE audit_settings SET ahead = newest.turn FROM
          (SELECT turn FROM audit_rows ORDER BY turn DESC LIMIT 1) AS newest
        WHERE newest.turn >= ahead + pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        RETURNING ahead
        """
    ).fetchone()
    return (
        [] if raised is None else [f"new rows come behind those that were restored ({raised[0]})"]
    )
