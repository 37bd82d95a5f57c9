"""Fixtures that any test may ask for: a server of its own, and a memory on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from tests.support import checked_memory


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
