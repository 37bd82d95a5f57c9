"""tasks/declaration.py: what a skill's declaration must say, and what fits an errback."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from audit.errors import SkillDefinitionError
from tasks.declaration import check_declaration, fits_errback


@pytest.mark.parametrize("skill_id", ["a", "obs.triage-alert", "a_b.c-9", "a" * 200])
@pytest.mark.parametrize("version", ["1", "1.0.0", "2026-11-30+b7", "v1", "1" * 100])
def test_what_can_be_declared(skill_id: str, version: str) -> None:
    """Up to the last character that there is room for."""
    check_declaration(skill_id, version)


@pytest.mark.parametrize(
    "skill_id",
    ["", "A", "a b", ".a", "a.", "a..b", "a" * 201, "a\n", "ä", "a/b", None, 5, ["a"]],
    ids=repr,
)
def test_an_id_that_cannot_be_used(skill_id: object) -> None:
    """The error says what one looks like."""
    with pytest.raises(SkillDefinitionError, match="must be words of a-z"):
        check_declaration(skill_id, "1")


@pytest.mark.parametrize("version", ["", ".1", "1 0", "1\n", "1" * 101, "-1", None, 1], ids=repr)
def test_a_version_that_cannot_be_used(version: object) -> None:
    """The error names the skill."""
    with pytest.raises(SkillDefinitionError, match=r"skill a needs a version"):
        check_declaration("a", version)


# --- errbacks: Celery puts the id of the failed task before what the signature brings along -------


def one(task_id: str) -> None: ...


def none() -> None: ...


def two(task_id: str, mark: str) -> None: ...


def optional(task_id: str, mark: str = "") -> None: ...


def various(*args: Any) -> None: ...


def named(task_id: str, *, mark: str) -> None: ...


def anything(task_id: str, **kwargs: Any) -> None: ...


def only_by_place(task_id: str, /) -> None: ...


@pytest.mark.parametrize(
    ("body", "errback", "fits"),
    [
        (one, {}, True),
        (one, {"args": None, "kwargs": None}, True),
        (one, {"args": ["x"]}, False),
        (one, {"args": ["x"], "immutable": True}, True),
        (one, {"immutable": True}, False),
        (none, {}, False),
        (none, {"immutable": True}, True),
        (two, {}, False),
        (two, {"args": ["x"]}, True),
        (two, {"kwargs": {"mark": "x"}}, True),
        (two, {"kwargs": {"task_id": "x"}}, False),
        (two, {"args": ["x"], "immutable": True}, False),
        (optional, {}, False),
        (optional, {"args": ["x"]}, True),
        (optional, {"kwargs": {"mark": "x"}}, True),
        (various, {}, False),
        (various, {"immutable": True}, False),
        (named, {"kwargs": {"mark": "x"}}, True),
        (named, {}, False),
        (anything, {"kwargs": {"mark": "x"}}, True),
        (only_by_place, {}, True),
        (optional, {"args": ["x"], "immutable": True}, False),
    ],
)
def test_which_errbacks_fit(body: Callable[..., None], errback: dict[str, Any], fits: bool) -> None:
    """Exactly one place is left for the id, or Celery would call the body inline."""
    assert fits_errback(inspect.signature(body), errback) is fits
