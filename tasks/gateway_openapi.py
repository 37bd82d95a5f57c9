"""The gateway's OpenAPI 3.1 document, made of the skills that are declared.

A skill has an address of its own in it, with the JSON Schema of its arguments as far as its
annotations tell: what an annotation does not tell, the schema leaves open. Defaults are code and
stay out.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Hashable, Iterable, Mapping
from inspect import Parameter
from typing import Any, Final

from audit.canonical import SURPLUS_KEY
from audit.errors import AuditError
from tasks.gateway_problem import STATUS, Fault
from tasks.gateway_request import HUMAN, PERSONA, TENANT
from tasks.refusal import REFUSALS
from tasks.task import SkillTask

_PLAIN: Final[Mapping[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    None: {"type": "null"},
}
_LISTS: Final = (list, tuple)
#: What may stand around a type and says nothing of its values.
_MARKS: Final = (typing.Required, typing.NotRequired, typing.Annotated)
#: Levels of a type that are told; one that holds itself has no end of them.
DEPTH: Final = 6
_REFERENCE: Final = {
    "type": "object",
    "properties": {"request_id": {"type": "string"}, "result_hash": {"type": "string"}},
    "required": ["request_id", "result_hash"],
}


def document(skills: Mapping[str, SkillTask]) -> dict[str, Any]:
    """The document, with an operation for each skill."""
    paths: dict[str, Any] = {
        f"/v1/skills/{name}": {"post": _operation(name, skills[name])} for name in sorted(skills)
    }
    paths["/v1/invocations/{link}"] = {"get": _STATUS_OPERATION}
    paths["/healthz"] = {"get": _HEALTH}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Skills", "version": "1"},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM, "Invocation": _INVOCATION, "Error": _ERROR},
            "responses": {"Problem": _content("application/problem+json", "Problem", "Refused")},
        },
    }


def _operation(name: str, skill: SkillTask) -> dict[str, Any]:
    told = inspect.getdoc(skill.run) or ""
    return {
        "operationId": name,
        "summary": told.partition("\n")[0] or name,
        "description": told,
        "x-skill-version": skill.version,
        "parameters": _PARAMETERS,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": arguments_schema(skill)}},
        },
        "responses": {
            "200": _result(skill),
            "202": _content("application/json", "Invocation", "Published; Location has its link"),
            **_problems(_OF_A_CALL, _REFUSED),
        },
    }


def arguments_schema(skill: SkillTask) -> dict[str, Any]:
    """The JSON Schema of a skill's arguments by name."""
    hints = _hints(skill)
    properties: dict[str, Any] = {}
    required, more = [], False
    for name, parameter in skill.parameters.parameters.items():
        schema = schema_of(hints.get(name, Any))
        if parameter.kind is Parameter.VAR_KEYWORD:
            more = True
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            properties[SURPLUS_KEY] = {"type": "array", "items": schema}
        else:
            properties[name] = schema
            required += [name] if parameter.default is Parameter.empty else []
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": more,
    }


def schema_of(hint: Any, depth: int = DEPTH) -> dict[str, Any]:
    """The JSON Schema of an annotation; an open one where it tells nothing that JSON knows.

    Args:
        hint: the annotation.
        depth: of how many levels is told; a type may hold itself.
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _MARKS:
        return schema_of(parts[0], depth)
    if origin is None and isinstance(hint, Hashable) and hint in _PLAIN:
        return dict(_PLAIN[hint])
    if depth < 1:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(part, depth - 1) for part in parts]}
    if origin is typing.Literal:
        return {"enum": list(parts)} if all(type(part) in _PLAIN for part in parts) else {}
    if (origin or hint) in _LISTS:
        items = parts[0] if parts and (origin is list or parts[1:] == (...,)) else Any
        return {"type": "array", "items": schema_of(items, depth - 1)}
    if (origin or hint) is dict:
        values = (*parts, Any, Any)[1]
        return {"type": "object", "additionalProperties": schema_of(values, depth - 1)}
    if typing.is_typeddict(hint):
        return _typed_dict(hint, depth - 1)
    return {}


def _typed_dict(hint: Any, depth: int) -> dict[str, Any]:
    try:
        parts = typing.get_type_hints(hint, include_extras=True)
    except Exception:  # as in _hints
        return {"type": "object"}
    return {
        "type": "object",
        "properties": {name: schema_of(part, depth) for name, part in parts.items()},
        "required": sorted(name for name, part in parts.items() if _is_required(hint, name, part)),
    }


def _is_required(hint: Any, name: str, part: Any) -> bool:
    """Python misses the mark of an annotation that is written as text."""
    marks = _marks(part)
    if typing.Required in marks or typing.NotRequired in marks:
        return typing.Required in marks
    return name in hint.__required_keys__


def _marks(part: Any) -> list[Any]:
    """What stands around the type itself, from the outside in."""
    found = []
    while (origin := typing.get_origin(part)) in _MARKS:
        found.append(origin)
        part = typing.get_args(part)[0]
    return found


def _hints(skill: SkillTask) -> dict[str, Any]:
    """An annotation that cannot be resolved here tells nothing."""
    body = inspect.unwrap(skill.run)
    try:
        return typing.get_type_hints(body)
    except Exception:  # it may hold any expression
        return {}


def _result(skill: SkillTask) -> dict[str, Any]:
    hint = _hints(skill).get("return", Any)
    result = _REFERENCE if skill.body_excluded else schema_of(hint)
    schema = {
        "allOf": [{"$ref": "#/components/schemas/Invocation"}],
        "properties": {"result": result},
        "required": ["result"],
    }
    return {
        "description": "With wait: the skill has returned",
        "content": {"application/json": {"schema": schema}},
    }


def _content(kind: str, schema: str, description: str) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": description, "content": {kind: {"schema": reference}}}


def _problems(faults: Iterable[Fault], others: Iterable[int] = ()) -> dict[str, Any]:
    statuses = sorted({STATUS[fault] for fault in faults} | {*others})
    return {str(status): {"$ref": "#/components/responses/Problem"} for status in statuses}


_OF_A_CALL: Final = frozenset(Fault) - {Fault.UNKNOWN_INVOCATION, Fault.METHOD_NOT_ALLOWED}

#: What a call is answered with that the worker refused.
_REFUSED: Final = tuple(kind.http_status for kind in REFUSALS if issubclass(kind, AuditError))


def _header(name: str, description: str, *, required: bool) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "description": description,
        "required": required,
        "schema": {"type": "string"},
    }


_PARAMETERS: Final = [
    _header(PERSONA, "The agent that calls, like cuo-cpo@0.4.1", required=True),
    _header(TENANT, "For whom it calls, a UUID", required=True),
    _header(HUMAN, "The human behind the agent", required=False),
    _header("traceparent", "W3C Trace Context", required=False),
    _header("tracestate", "W3C Trace Context", required=False),
    {
        "name": "wait",
        "in": "query",
        "description": "Seconds to wait for the result",
        "schema": {"type": "number", "minimum": 0},
    },
]
_ERROR: Final = {
    "type": "object",
    "properties": {"type": {"type": "string"}, "message": {"type": ["string", "null"]}},
    "required": ["type", "message"],
}
_INVOCATION: Final = {
    "type": "object",
    "properties": {
        "state": {"enum": ["pending", "retrying", "succeeded", "failed", "revoked"]},
        "task_id": {"type": "string"},
        "trace_id": {"type": "string"},
        "status_link": {"type": ["string", "null"], "description": "Where to ask"},
        "result": {},
        "error": {"$ref": "#/components/schemas/Error"},
    },
    "required": ["state", "task_id"],
}
_PROBLEM: Final = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "fault": {"enum": [fault.value for fault in Fault]},
    },
    "required": ["type", "title", "status", "detail", "fault"],
}
_STATUS_OPERATION: Final = {
    "operationId": "invocation",
    "summary": "How far an invocation is, and what it returned",
    "parameters": [
        {"name": "link", "in": "path", "required": True, "schema": {"type": "string"}},
    ],
    "responses": {
        "200": _content("application/json", "Invocation", "How far it is"),
        **_problems((Fault.UNAUTHENTICATED, Fault.UNKNOWN_INVOCATION, Fault.RESULTS_UNREACHABLE)),
    },
}
_HEALTH: Final = {
    "operationId": "healthz",
    "summary": "Whether the gateway is up",
    "security": [],
    "responses": {"200": {"description": "It is"}},
}
