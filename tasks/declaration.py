"""What a skill's declaration must say, and what its signature is good for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from inspect import Parameter
from typing import Any, Final

from audit.errors import SkillDefinitionError

SKILL_ID: Final = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,99}")

_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def check_declaration(skill_id: object, version: object) -> None:
    """Refuse a declaration that could not be audited.

    Raises:
        SkillDefinitionError: the id or the version cannot be used.
    """
    if not isinstance(skill_id, str) or len(skill_id) > 200 or not SKILL_ID.fullmatch(skill_id):
        raise SkillDefinitionError(
            f"skill id {skill_id!r} must be words of a-z and 0-9 joined by . _ or -, like"
            " 'obs.triage-alert', at most 200 characters"
        )
    if not isinstance(version, str) or not VERSION.fullmatch(version):
        raise SkillDefinitionError(
            f"skill {skill_id} needs a version, like version='1.0.0'; got {version!r}"
        )


def fits_errback(signature: inspect.Signature, errback: Mapping[str, Any]) -> bool:
    """Whether Celery would publish a skill of that signature as an errback, with fitting arguments.

    It puts the id of the failed task before what the errback's own signature brings along, and
    calls a body inline that could take more than that.
    """
    args, kwargs = tuple(errback.get("args") or ()), errback.get("kwargs") or {}
    immutable = bool(errback.get("immutable"))
    try:
        signature.bind(*(args if immutable else ("id", *args)), **kwargs)
    except TypeError:
        return False
    places = [p for p in signature.parameters.values() if p.kind in _BY_PLACE]
    taken = 0 if immutable else len(args) + sum(p.name in kwargs for p in places)
    various = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    return len(places) - taken <= 1 and not various
