"""tasks/reprs.py: what stands in the place of a value wherever Celery shows one."""

from __future__ import annotations

from typing import Any

import pytest

from audit.canonical import digest
from audit.errors import CanonicalizationError, SkillArgumentsError
from audit.keys import Key
from tasks.reprs import NO_FORM, as_sent, is_shown, of_skill, shown
from tests.support import HASH

KEY = Key(key_id="k-1.a_b", secret=b"s" * 32)
OTHER = Key(key_id="k-2", secret=b"t" * 32)


class Skill:
    """Knows its arguments by name, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def args_hash(self, args: Any, kwargs: Any, key: Key | None = None) -> str:
        if self.error is not None:
            raise self.error
        return digest({"x": args[0]}, key)


def test_a_plain_hash_says_how_it_was_made() -> None:
    """So does a keyed one, by itself."""
    assert shown(HASH) == f"sha256:{HASH}"
    assert shown(f"hmac:k1:{HASH}") == f"hmac:k1:{HASH}"


@pytest.mark.parametrize(
    "text",
    [
        f"sha256:{HASH[:-1]}",
        f"sha256:{HASH}0",
        f"sha256:{HASH}\n",
        f" sha256:{HASH}",
        f"sha256:{HASH.upper()}",
        f"hmac::{HASH}",
        f"hmac:a:b:{HASH}",
        f"hmac:{'k' * 65}:{HASH}",
        HASH,
        NO_FORM,
        "('customer-4711',)",
        "",
        None,
        5,
        [f"sha256:{HASH}"],
    ],
    ids=repr,
)
def test_what_is_no_hash(text: object) -> None:
    """A foreign publisher's repr must not pass for one, not even with something behind it."""
    assert not is_shown(text)


def test_what_is_a_hash() -> None:
    """Plain or keyed; where there is a key, with that key alone."""
    plain, keyed = shown(HASH), shown(digest(1, KEY))
    assert is_shown(plain)
    assert is_shown(keyed)
    assert is_shown(keyed, KEY)
    assert not is_shown(keyed, OTHER)
    assert not is_shown(plain, KEY)


@pytest.mark.parametrize("key", [None, KEY])
def test_a_skills_arguments_go_by_name(key: Key | None) -> None:
    """The very hash of the started row."""
    assert of_skill(Skill(), (5,), {}, key) == shown(digest({"x": 5}, key))


@pytest.mark.parametrize("error", [SkillArgumentsError("no"), CanonicalizationError("$", "no")])
def test_arguments_that_do_not_fit_are_shown_as_sent(error: Exception) -> None:
    """Keyed as well: what was sent can be guessed as easily."""
    for key in (None, KEY):
        assert of_skill(Skill(error), (5,), {"y": 1}, key) == as_sent((5,), {"y": 1}, key)


def test_as_sent_is_the_hash_of_both() -> None:
    """Nothing and None are an empty list and an empty object; a key makes it an HMAC."""
    assert as_sent((1,), {"a": 2}) == shown(digest({"args": [1], "kwargs": {"a": 2}}))
    assert as_sent(None, None) == as_sent([], {}) == shown(digest({"args": [], "kwargs": {}}))
    assert is_shown(as_sent((1,), {}, KEY), KEY)
    assert as_sent((1,), {}) != as_sent((2,), {})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((object(),), {}), ((), {"x": float("nan")}), (5, {}), ((), 5), ((), [1]), ((), {(1,): 2})],
    ids=["an object", "NaN", "a number", "keywords 5", "keywords list", "a tuple as key"],
)
def test_what_has_no_hash_shows_nothing(args: Any, kwargs: Any) -> None:
    """A foreign publisher's arguments may be anything."""
    assert as_sent(args, kwargs) == NO_FORM
    error = SkillArgumentsError("no")
    assert of_skill(Skill(error), args, kwargs) == NO_FORM
