"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.caller import one_task


@pytest.fixture(autouse=True)
def _one_test() -> Iterator[None]:
    """A test that starts an invocation without Celery's tracer leaves none running behind it."""
    with one_task():
        yield
