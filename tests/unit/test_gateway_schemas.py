"""tasks/gateway_openapi.py: no annotation of a skill keeps the gateway from starting."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Required, TypedDict

import pytest
from jsonschema import Draft202012Validator
from kombu.utils.json import dumps

from audit.errors import AuditError
from tasks import SkillHost
from tasks.gateway_openapi import document, schema_of
from tasks.refusal import REFUSALS

if TYPE_CHECKING:
    from somewhere import Else  # type: ignore[import-not-found]


class Colour(Enum):
    RED = "red"


class Node(TypedDict):
    children: list[Node]
    label: str


class Dangling(TypedDict):
    other: Else


class Order(TypedDict):
    item: str
    pieces: NotRequired[int]


class Loose(TypedDict, total=False):
    item: Required[Annotated[str, "an article"]]
    pieces: int


@pytest.mark.parametrize(
    "hint",
    [Literal[Colour.RED], Literal[b"x"], Node, Dangling, list[Dangling], Annotated[int, []]],
)
def test_a_skill_may_be_annotated_in_any_way(hint: Any) -> None:
    """Its operation is in the document, whose schemas are schemas."""
    app = SkillHost("annotated")

    def body(x: Any) -> Any: ...

    body.__annotations__ = {"x": hint, "return": hint}
    app.skill("a.b", version="1")(body)
    found = document({"a.b": app.tasks["a.b"]})
    assert "/v1/skills/a.b" in found["paths"]
    assert dumps(found)
    Draft202012Validator.check_schema(schema_of(hint))


def test_a_type_that_holds_itself_is_told_some_levels_deep() -> None:
    """And left open below them."""
    valid = Draft202012Validator(schema_of(Node)).is_valid
    assert valid({"label": "a", "children": [{"label": "b", "children": []}]})
    assert not valid({"label": "a", "children": [{"label": 1, "children": []}]})


@pytest.mark.parametrize(("hint", "required"), [(Order, ["item"]), (Loose, ["item"])])
def test_what_may_be_left_out_is_not_required(hint: Any, required: list[str]) -> None:
    """Also where the annotations are text, of which Python itself reads no mark."""
    schema = schema_of(hint)
    assert schema["required"] == required
    assert schema["properties"]["item"] == {"type": "string"}
    assert schema["properties"]["pieces"] == {"type": "integer"}


def test_every_refusal_of_a_worker_is_an_answer_of_a_call() -> None:
    """The document names each status that a refused call can have."""
    app = SkillHost("refused")

    @app.skill("a.b", version="1")
    def body(x: int) -> int: ...

    answers = document({"a.b": app.tasks["a.b"]})["paths"]["/v1/skills/a.b"]["post"]["responses"]
    statuses = {str(kind.http_status) for kind in REFUSALS if issubclass(kind, AuditError)}
    assert {"400", "403", "409"} <= statuses <= answers.keys()
