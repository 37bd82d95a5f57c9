"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery._state import _task_stack

from audit.ledger import durable
from tasks.caller import one_task


@pytest.fixture(autouse=True)
def _one_test() -> Iterator[None]:
    """A test that runs parts of a task by itself leaves none running behind it."""
    while _task_stack.top is not None:
        _task_stack.pop()
    with one_task():
        yield


@pytest.fixture
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails in this test: what the ledger writes need not reach the disk at once."""
    monkeypatch.setattr(durable.os, "fsync", lambda descriptor: None)
