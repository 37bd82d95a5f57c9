"""What stands in the place of a value wherever Celery shows one: its hash.

``sha256:<hash>``, or ``hmac:<key id>:<hash>`` where the tenant's hashes are keyed, so that what
Flower, an event, a log or ``inspect`` shows and what an audit row holds can be joined by eye.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from audit.canonical import digest
from audit.errors import AuditError, CanonicalizationError
from audit.keys import Key

#: For what has no hash.
NO_FORM: Final = "sha256:no-canonical-form"

#: For what nobody needs to see, and no hash is at hand.
WITHHELD: Final = "withheld"

_SHOWN: Final = re.compile(r"(?P<plain>sha256:|hmac:(?P<key>[A-Za-z0-9._-]{1,64}):)[0-9a-f]{64}")


def shown(hashed: str) -> str:
    """How a hash of a row is shown."""
    return hashed if hashed.startswith("hmac:") else f"sha256:{hashed}"


def is_shown(text: object, key: Key | None = None) -> bool:
    """Whether ``text`` is a hash as shown, keyed with ``key`` where there is one."""
    match = _SHOWN.fullmatch(text) if isinstance(text, str) else None
    return match is not None and (key is None or match["key"] == key.key_id)


def of_skill(
    skill: Any, args: Sequence[Any], kwargs: Mapping[str, Any], key: Key | None = None
) -> str:
    """What stands for the arguments of a skill, whatever a message has for arguments."""
    try:
        return shown(skill.args_hash(args, kwargs, key))
    except AuditError:
        return as_sent(args, kwargs, key)


def as_sent(args: Any, kwargs: Any, key: Key | None = None) -> str:
    """What stands for arguments whose skill this process does not know."""
    try:
        return shown(digest({"args": list(args or ()), "kwargs": dict(kwargs or {})}, key))
    except (CanonicalizationError, TypeError, ValueError):
        return NO_FORM
