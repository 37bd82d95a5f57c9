"""What the contract suite runs over: servers for many tests, empty for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from audit.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def lasting_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def empty_url(lasting_server: EmbeddedServer) -> str:
    """Of an empty database."""
    redis.Redis.from_url(lasting_server.url).flushall()
    return lasting_server.url
