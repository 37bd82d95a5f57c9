"""What the contract suite runs over: servers for many tests, empty for each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis

from audit.embedded import EmbeddedServer

#: What these prove by many rows, the same code does on one server; over a cluster they run where
#: CLUSTER_LONG is set.
OF_MANY_ROWS = (
    "test_writers_side_by_side_lose_and_double_nothing[cluster]",
    "test_many_rows_come_in_pages_and_none_is_missed[cluster]",
    "test_what_runs_comes_in_stored_order_however_dense[cluster]",
    "test_every_filter_and_every_combination[cluster]",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what would take seconds."""
    if os.environ.get("CLUSTER_LONG"):
        return
    left_out = [item for item in items if item.name in OF_MANY_ROWS]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.name not in OF_MANY_ROWS]


@pytest.fixture(scope="module")
def lasting_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def empty_url(lasting_server: EmbeddedServer) -> str:
    """Of an empty database."""
    redis.Redis.from_url(lasting_server.url).flushall()
    return lasting_server.url
