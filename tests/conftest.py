"""Fixtures that any test may ask for: a server of its own, and a memory on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from tasks.lease import Lease
from tests.support import checked_memory


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
