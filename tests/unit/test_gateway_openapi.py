"""tasks/gateway_openapi.py: a document that tools can read, made of what is declared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, TypedDict

import pytest
from jsonschema import Draft202012Validator

from tasks import SkillHost
from tasks.gateway_calls import Calls
from tasks.gateway_openapi import arguments_schema, document, schema_of
from tests.integration.skills import declare

#: What OpenAPI 3.1.0 demands of the parts that the document has (sections 4.8.1 to 4.8.17).
OPENAPI = {
    "type": "object",
    "required": ["openapi", "info", "paths"],
    "additionalProperties": False,
    "properties": {
        "openapi": {"const": "3.1.0"},
        "info": {"type": "object", "required": ["title", "version"]},
        "security": {"$ref": "#/$defs/security"},
        "paths": {
            "patternProperties": {
                "^/": {
                    "type": "object",
                    "additionalProperties": {"$ref": "#/$defs/operation"},
                    "propertyNames": {"enum": ["get", "post"]},
                }
            },
            "additionalProperties": False,
        },
        "components": {
            "type": "object",
            "properties": {
                "schemas": {"type": "object"},
                "responses": {"additionalProperties": {"$ref": "#/$defs/response"}},
                "securitySchemes": {
                    "additionalProperties": {"type": "object", "required": ["type", "scheme"]}
                },
            },
            "additionalProperties": False,
        },
    },
    "$defs": {
        "security": {
            "type": "array",
            "items": {"type": "object", "additionalProperties": {"type": "array"}},
        },
        "operation": {
            "type": "object",
            "required": ["operationId", "responses"],
            "additionalProperties": False,
            "patternProperties": {"^x-": {}},
            "properties": {
                "operationId": {"type": "string"},
                "summary": {"type": "string"},
                "description": {"type": "string"},
                "security": {"$ref": "#/$defs/security"},
                "parameters": {"type": "array", "items": {"$ref": "#/$defs/parameter"}},
                "requestBody": {
                    "type": "object",
                    "required": ["content"],
                    "properties": {"required": {"type": "boolean"}},
                },
                "responses": {
                    "type": "object",
                    "minProperties": 1,
                    "patternProperties": {"^[1-5][0-9]{2}$": {"$ref": "#/$defs/response"}},
                    "additionalProperties": False,
                },
            },
        },
        "parameter": {
            "type": "object",
            "required": ["name", "in", "schema"],
            "properties": {
                "name": {"type": "string"},
                "in": {"enum": ["query", "header", "path"]},
                "required": {"type": "boolean"},
            },
            "if": {"properties": {"in": {"const": "path"}}},
            "then": {"required": ["required"], "properties": {"required": {"const": True}}},
        },
        "response": {
            "oneOf": [
                {"type": "object", "required": ["$ref"], "maxProperties": 1},
                {
                    "type": "object",
                    "required": ["description"],
                    "properties": {"description": {"type": "string"}},
                },
            ]
        },
    },
}


class Person(TypedDict, total=False):
    name: str


@pytest.fixture
def app() -> SkillHost:
    app = SkillHost("openapi")
    declare(app)
    return app


def schemas(node: Any) -> Iterator[Any]:
    """Every JSON Schema in the document: what stands under ``schema`` and in ``schemas``."""
    if isinstance(node, dict):
        if "schema" in node:
            yield node["schema"]
        yield from node.get("schemas", {}).values()
        for part in node.values():
            yield from schemas(part)
    elif isinstance(node, list):
        for part in node:
            yield from schemas(part)


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for part in node.values():
            yield from references(part)
    elif isinstance(node, list):
        for part in node:
            yield from references(part)


def test_the_document_is_openapi(app: SkillHost) -> None:
    """Its shape, every schema in it, every reference, and its operations' ids."""
    found = json.loads(json.dumps(document(Calls(app, 10).skills())))
    Draft202012Validator(OPENAPI).validate(found)
    assert len(list(schemas(found))) > 50
    for schema in schemas(found):
        Draft202012Validator.check_schema(schema)
    for reference in references(found):
        place = found
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
    ids = [
        operation["operationId"] for path in found["paths"].values() for operation in path.values()
    ]
    assert len(ids) == len(set(ids))


def test_every_skill_and_no_other_task_is_in_it(app: SkillHost) -> None:
    """With its version and the first line of its docstring; a plain task is none."""
    paths = document(Calls(app, 10).skills())["paths"]
    assert "/v1/skills/test.echo" in paths
    assert not {"/v1/skills/test.plain", "/v1/skills/celery.chord"} & paths.keys()
    assert paths["/v1/skills/test.echo"]["post"]["x-skill-version"] == "1.2.0"
    assert paths["/v1/skills/test.hold"]["post"]["summary"] == "Runs until a file exists."


def test_what_a_skill_takes() -> None:
    """Required is what has no default; nothing else may come unless the skill takes it."""
    app = SkillHost("openapi")

    @app.skill("a.b", version="1", bind=True)
    def body(
        self: Any, a: int, b: str = "s3cret", *more: float, c: Person | None = None
    ) -> None: ...

    schema = arguments_schema(app.tasks["a.b"])
    assert schema["required"] == ["a"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["a", "b", "*args", "c"]
    assert "s3cret" not in json.dumps(document(Calls(app, 10).skills()))
    check = Draft202012Validator(schema).is_valid
    assert check({"a": 1, "*args": [1.5], "c": {"name": "x"}})
    assert not check({"a": "1"})
    assert not check({"b": "x"})
    assert not check({"a": 1, "d": 1})


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (int, {"type": "integer"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (list, {"type": "array", "items": {}}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, str], {"type": "array", "items": {}}),
        (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (dict, {"type": "object", "additionalProperties": {}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (
            Person,
            {"type": "object", "properties": {"name": {"type": "string"}}, "required": []},
        ),
    ],
)
def test_annotations(hint: Any, schema: dict[str, Any]) -> None:
    """What JSON knows is told, all else is left open."""
    assert schema_of(hint) == schema
