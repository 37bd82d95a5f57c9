"""How many rows a memory holds, asked of its store: the bench trusts no count of the audit's."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from bench.server import client


def counter(url: str) -> Callable[[], int]:
    """Counts the rows of the memory at ``url``."""
    if url.startswith("postgresql://"):
        return lambda: count(url, "SELECT count(*) FROM audit.audit_rows")
    server = client(url.partition("?")[0])  # behind it stand parameters of the audit's

    def rows() -> int:
        # By name: looking for keys would cost more than a batch, where results stand beside them.
        tenants = server.smembers("audit:tenants")
        return sum(server.xlen(f"audit:{{{tenant.decode()}}}:rows") for tenant in tenants)

    return rows


def count(url: str, query: str) -> int:
    """The number that a query on a PostgreSQL database gives."""
    with psycopg.connect(url) as connection:
        found = connection.execute(query.encode()).fetchone()
    assert found is not None
    return int(found[0])
