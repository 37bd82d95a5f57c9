"""The arguments in a request's body: one JSON object by name, as ``audit compare-args`` takes it.

What JSON has no word for is written as Celery writes it on the wire,
``{"__type__": "date", "__value__": "2026-11-29"}``; surplus positional arguments are a list under
``"*args"``. Errors name a place or a parameter, never a value.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from inspect import Parameter
from typing import Any, Final

from kombu.utils.json import object_hook

from audit.canonical import SURPLUS_KEY, arguments_by_name
from audit.errors import SkillArgumentsError

_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class MalformedBodyError(ValueError):
    """The body is no JSON object in UTF-8, or an object in it has a name twice."""


def parse(body: bytes) -> dict[str, Any]:
    """The arguments by name.

    Raises:
        MalformedBodyError: these are none; nothing of the body hangs on to it.
    """
    try:
        found = json.loads(body.decode(), object_pairs_hook=_members)
    except Exception:  # also what the decoders of an application's own types raise
        found = None
    if not isinstance(found, dict):
        raise MalformedBodyError
    return found


def _members(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return object_hook(members)


def call_of(
    signature: inspect.Signature, named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments that are ``named`` by the rules of decision 6.

    Raises:
        SkillArgumentsError: they do not fit the signature.
        CanonicalizationError: a name reads like another parameter.
    """
    kwargs = dict(named)
    surplus: Any = None
    if _takes_surplus(signature):
        surplus = kwargs.pop(SURPLUS_KEY, None)
        if surplus is not None and not isinstance(surplus, list):
            raise SkillArgumentsError(f"{SURPLUS_KEY} takes a list")
    args = []
    for parameter in signature.parameters.values():
        # Before surplus ones all must go by their place, else those alone that have no other way.
        if parameter.kind not in (_BY_PLACE if surplus else _BY_PLACE[:1]):
            continue
        if parameter.name not in kwargs:
            break
        args.append(kwargs.pop(parameter.name))
    args.extend(_fitting(signature, args, surplus) if surplus else ())
    arguments_by_name(signature, args, kwargs)
    return args, kwargs


def _takes_surplus(signature: inspect.Signature) -> bool:
    return any(p.kind is Parameter.VAR_POSITIONAL for p in signature.parameters.values())


def _fitting(signature: inspect.Signature, args: list[Any], surplus: list[Any]) -> list[Any]:
    places = sum(p.kind in _BY_PLACE for p in signature.parameters.values())
    if len(args) < places:
        raise SkillArgumentsError(
            f"with {SURPLUS_KEY} every parameter before it must be given: {places}, got {len(args)}"
        )
    return surplus
