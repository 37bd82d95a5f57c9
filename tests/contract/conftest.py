"""What the contract suite runs over: servers for many tests, empty for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
import redis

from audit.embedded import EmbeddedServer
from audit.memory.sql.migration import migrate
from tests.postgres import PostgresServer

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def lasting_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def empty_url(lasting_server: EmbeddedServer) -> str:
    """Of an empty database."""
    redis.Redis.from_url(lasting_server.url).flushall()
    return lasting_server.url


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    # What a commit costs on this machine's disk is no part of the contract.
    server = PostgresServer(options={"synchronous_commit": "on", "fsync": "on"})
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Of a memory without a row, in a schema of its own."""
    schema = f"audit_{next(_NUMBERS)}"
    url = postgres.url(schema=schema)
    migrate(url)
    yield url
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Of a file that is not there yet."""
    return f"sqlite:///{tmp_path}/audit.db"
