"""The variants under test, one a module; each has ``make(place)``, which gives a :class:`Side`.

A module imports what its variant needs and nothing of the others: bare Celery runs in a process
that never imported the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from bench.place import Place


def nothing() -> None:
    """What is to be set up in a process where nothing is."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One variant.

    Attributes:
        app: the Celery app.
        noop: a task that returns its one argument.
        fail: a task that raises ``ValueError``.
        caller: what a publisher enters before it publishes.
        set_up: called in every process that publishes or runs tasks, after it forked.
        options: what its workers are started with beside what all are.
    """

    app: Any
    noop: Any
    fail: Any
    caller: Callable[[], AbstractContextManager[object]] = nullcontext
    set_up: Callable[[], None] = nothing
    options: Sequence[str] = ()


def noop(number: int) -> int:
    return number


def fail(number: int) -> int:
    raise ValueError(f"refuses the number {number}")


def make_side(name: str, place: Place) -> Side:
    """The variant of that module of ``bench``, e.g. ``sides.bare``, working at ``place``."""
    return cast(Side, import_module(f"bench.{name}").make(place))
