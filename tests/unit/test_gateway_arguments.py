"""tasks/gateway_arguments.py: a body by name becomes a call with the same hash."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from audit.canonical import arguments_by_name
from audit.errors import CanonicalizationError, SkillArgumentsError
from tasks.gateway_arguments import MalformedBodyError, call_of, parse


def plain(a: Any, b: Any = 2) -> None: ...
def by_place(a: Any, /, b: Any = 2) -> None: ...
def places(a: Any = 1, b: Any = 2, /, c: Any = 3) -> None: ...
def surplus(a: Any, *more: Any, k: Any = 1) -> None: ...
def keywords(a: Any = 1, **more: Any) -> None: ...
def both(*args: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (plain, {"a": 1}),
        (plain, {"b": 1, "a": 2}),
        (by_place, {"a": 1, "b": 3}),
        (places, {"a": 1}),
        (places, {"c": 1}),
        (surplus, {"a": 1, "*args": [2, 3], "k": 4}),
        (surplus, {"a": 1, "k": 4}),
        (keywords, {"a": 1, "other": 2}),
        (both, {"*args": [1, 2], "x": 3}),
        (both, {}),
    ],
)
def test_a_call_is_named_as_the_body_named_it(
    function: Callable[..., Any], named: dict[str, Any]
) -> None:
    """So the row's hash is that of the body, as ``audit compare-args`` makes it."""
    signature = inspect.signature(function)
    args, kwargs = call_of(signature, named)
    assert arguments_by_name(signature, args, kwargs) == named
    function(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (plain, {}),
        (plain, {"a": 1, "c": 1}),
        (plain, {"a": 1, "*args": [1]}),
        (places, {"b": 1}),
        (by_place, {"b": 1}),
        (surplus, {"*args": [1]}),
        (surplus, {"a": 1, "*args": 5}),
        (keywords, {"*args": [1]}),
    ],
)
def test_what_does_not_fit(function: Callable[..., Any], named: dict[str, Any]) -> None:
    """Is refused before anything is published."""
    with pytest.raises((SkillArgumentsError, CanonicalizationError)):
        call_of(inspect.signature(function), named)


def test_celerys_own_words_for_values() -> None:
    """A tagged object is the value that it names."""
    found = parse(b'{"x": {"__type__": "decimal", "__value__": "1.50"}}')
    assert str(found["x"]) == "1.50"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"a": 1',
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "b": 2}}',
        b"\xff\xfe{\x00}\x00",
        b'{"a": {"__type__": "s3cret", "__value__": 1}}',
        b'{"a": {"__type__": ["s3cret"], "__value__": 1}}',
        b'{"__type__": "decimal", "__value__": "1"}',
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_body(body: bytes) -> None:
    """One error without a word of the body, for whatever is wrong with it."""
    with pytest.raises(MalformedBodyError) as caught:
        parse(body)
    assert str(caught.value) == ""
    assert caught.value.__context__ is None
