"""tests/compiled.py: what says yes to thousands of rows says what ``jsonschema`` says."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from audit.row import Reason, Refusal
from tests.compiled import compiled
from tests.support import (
    completed,
    inlined_validator,
    make_ending,
    make_identity,
    refused,
    row_check,
    started,
)

DOCUMENTS = int(os.environ.get("SCHEMA_DOCUMENTS", "150"))

ROWS = [
    started(make_identity(schedule="nightly", due="2026-01-01T00:00:00.000000Z")),
    *(completed(make_identity(), make_ending(reason)) for reason in Reason),
    *(refused(make_identity(), refusal) for refusal in Refusal),
]
VALID: list[dict[str, Any]] = [json.loads(row.to_bytes()) for row in ROWS]


def places(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, value in document.items():
        yield document, name
        if isinstance(value, dict):
            yield from places(value)


def leaves(document: dict[str, Any]) -> list[Any]:
    return [holder[name] for holder, name in places(document) if not isinstance(holder[name], dict)]


#: What stands somewhere in a row and would be wrong, or right, in another place of it.
BORROWED = list({json.dumps(leaf): leaf for row in VALID for leaf in leaves(row)}.values())
ODD = [None, True, False, 0, 1, 1.0, -1, 0.5, "", "x", "x\n", "x" * 201, [], {}, "a.b", [1], 2**60]


@settings(max_examples=DOCUMENTS, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_both_say_the_same_of_a_row_with_something_changed(data: st.DataObject) -> None:
    """A value borrowed from another place, an odd one, a name too many or too few."""
    document = copy.deepcopy(data.draw(st.sampled_from(VALID)))
    for _ in range(data.draw(st.integers(1, 2))):
        holder, name = data.draw(st.sampled_from(list(places(document))))
        match data.draw(st.sampled_from(["put", "put", "drop", "add"])):
            case "put":
                holder[name] = data.draw(st.sampled_from(BORROWED + ODD))
            case "drop":
                del holder[name]
            case _:
                holder[data.draw(st.sampled_from(["other", "due", "duration"]))] = holder[name]
    assert row_check()(document) is inlined_validator().is_valid(document)


@pytest.mark.parametrize("document", VALID, ids=lambda d: f"{d['kind']} {d['meta']['reason']}")
def test_what_is_valid_passes(document: dict[str, Any]) -> None:
    """Every kind and every reason."""
    assert row_check()(document)


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"}, {"type": "string"}, {"type": "boolean"}, {"type": "null"},
        {"type": "integer"}, {"type": ["string", "null"]}, {"const": 1}, {"const": True},
        {"const": ""}, {"enum": [0, "x"]}, {"required": ["a"]}, {"pattern": "^x$"},
        {"properties": {"a": {"const": 1}}, "additionalProperties": False},
        {"maxLength": 1}, {"minLength": 1}, {"minimum": 0}, {"not": {"type": "string"}},
        {"dependentRequired": {"a": ["b"]}}, {"anyOf": [{"type": "null"}, {"const": 1}]},
        {"oneOf": [{"type": "integer"}, {"minimum": 0}]}, {"allOf": [{"type": "integer"}]}, {},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_each_keyword_says_what_it_says_there(schema: dict[str, Any], value: Any) -> None:
    """Of values of every type, and of objects that have a name or lack it."""
    slow, quick = Draft202012Validator(schema), compiled(schema)
    for document in (value, {"a": value}, {"b": value}, {"a": 1, "b": 2}):
        assert bool(quick(document)) is slow.is_valid(document), document


def test_an_unknown_keyword_is_not_passed_over() -> None:
    """A schema that comes to use more needs more here."""
    with pytest.raises(KeyError, match="format"):
        compiled({"properties": {"a": {"format": "uuid"}}})
