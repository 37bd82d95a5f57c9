"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.stack import Stack, running_stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A host with one prefork worker, shared by a module; its rows are checked in the end."""
    with running_stack(tmp_path_factory.mktemp("stack")) as stack:
        stack.worker("prefork", 4)
        yield stack
