"""Fixtures that any test may ask for: a server of its own, and a memory on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory, migrate_memory
from demo.postgres import PostgresServer
from tasks.lease import Lease
from tests.cluster import Cluster
from tests.support import checked_memory

INTEGRATION = Path(__file__).parent / "integration"

#: Of the schemas that tests have had.
_NUMBERS = count(1)


def pytest_configure() -> None:
    """A background job ignores SIGINT, and so would all whom its tests interrupt."""
    # Keepers of tests that run side by side must not fight for one port.
    os.environ["AUDIT_KEEPER_LISTEN"] = "off"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: what waits for a server or a worker leaves its core idle."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait for processes take turns with those that compute, so that no core idles.

    In the end there are only the latter: they are short, so all workers end at about the same time.
    """
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [file for file in files if INTEGRATION in file.parents]
    computing = [file for file in files if INTEGRATION not in file.parents]
    place = {file: 0.9 * number / len(waiting) for number, file in enumerate(waiting)}
    place |= {file: number / len(computing) for number, file in enumerate(computing)}
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(scope="module", autouse=True)
def _no_lease_is_left() -> Iterator[None]:
    """What a module of tests starts in this process renews no lease when its servers are gone."""
    held: list[Lease] = []
    hold = Lease.hold

    def noted(lease: Lease) -> None:
        held.append(lease)
        hold(lease)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "hold", noted)
        yield
    for lease in held:
        lease.give_back()


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A fresh embedded server."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def memory(server: EmbeddedServer) -> Iterator[AuditMemory]:
    """A memory on :func:`server`; when the test ends, every row in it is checked."""
    with checked_memory(server.url) as memory:
        yield memory


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests of this process that end none and set nothing for others."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[str]:
    """Of a memory without a row, in a schema of its own.

    Where ``AUDIT_TEST_POSTGRES`` is set, as :func:`guarded_url` says: the contract over that.
    """
    if os.environ.get("AUDIT_TEST_POSTGRES"):
        yield request.getfixturevalue("guarded_url")
        return
    schema = f"audit_{next(_NUMBERS)}"
    url = postgres.url(schema=schema)
    migrate_memory(url)
    yield url
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(scope="session")
def guarded_roles(postgres: PostgresServer) -> None:
    """Neither is a superuser, whom no policy binds; they go with the server."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        for role in ("contract_owner", "contract_host"):
            connection.execute(f"CREATE ROLE {role} LOGIN")


@pytest.fixture
def guarded_url(postgres: PostgresServer, guarded_roles: None) -> Iterator[str]:
    """Of a memory with row security and a partition for each month, as its writer."""
    schema = f"guarded_{next(_NUMBERS)}"
    url = postgres.url(schema=schema)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION contract_owner")
        migrate_memory(
            url.replace("postgres@", "contract_owner@"),
            writer="contract_host",
            row_security=True,
            monthly=True,
        )
        yield url.replace("postgres@", "contract_host@")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three masters for all tests of this process that end none and move no slot."""
    with Cluster.start() as cluster:
        yield cluster


@pytest.fixture
def cluster_url(cluster: Cluster) -> Iterator[str]:
    """Of a memory without a row, under a prefix of its own."""
    yield cluster.url(prefix=f"audit-{next(_NUMBERS)}")
    cluster.flush()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Of a file that is not there yet."""
    return f"sqlite:///{tmp_path}/audit.db"
