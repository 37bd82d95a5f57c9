"""What is said of commands that failed on several tries."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
import redis

from audit.errors import MemoryUnavailableError
from audit.memory.connection import Nodes
from audit.memory.redis_talk import Talk


class NoNodes:
    """None of them answers; each try fails as it is told here."""

    one_node = True

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def take(self, *_: Any) -> Any:
        raise self.errors.pop(0)

    take_plain = take

    def pauses(self) -> Any:
        return itertools.repeat(0.1, len(self.errors) - 1)

    def turn(self, error: Exception) -> None:
        return None


def said(*errors: Exception, what: str = "write") -> str:
    """What a call is told whose tries fail so, one after the other."""
    talk = Talk(
        cast("Nodes", NoNodes(*errors)), prefix="p", shown="M", timeout=9, pause=lambda _: None
    )
    with pytest.raises(MemoryUnavailableError) as raised:
        getattr(talk, what)([("SET", "key", "value")])
    assert raised.value.maybe_stored is False
    return str(raised.value)


def test_a_last_try_without_time_does_not_hide_what_is_wrong() -> None:
    """The deadline falls into a try: why the one before it failed is said too."""
    late, wrong = redis.TimeoutError("too late"), redis.ReadOnlyError("no master")
    both = "memory M did not answer as it should: too late (the try before: no master)"
    assert said(wrong, wrong, late) == said(wrong, wrong, late, what="read") == both


def test_what_was_wrong_each_time_is_said_once() -> None:
    wrong = redis.ReadOnlyError("no master")
    assert said(wrong, wrong) == said(wrong) == "memory M did not answer as it should: no master"
