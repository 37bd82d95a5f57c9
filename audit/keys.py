"""Secret keys: what proves a context, and what makes a hash that nobody can guess.

A :class:`KeyRing` is read from a setting. Its first key that allows a caller is the one to sign or
hash with, and every key of it may be looked up by its id, so that keys can be changed without a
moment in which old and new hosts disagree.

What is guaranteed: no text made here, and no ``repr``, shows a secret, nor any other value that was
put into a setting; a key's id has no character in it that parts the words of a signature or a hash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

#: As many characters as SHA-256 has bytes (RFC 2104, section 3).
MIN_SECRET: Final = 32

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TENANT: Final = re.compile(r"(?![0-]+$)[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_PATTERN: Final = re.compile(r"[A-Za-z0-9._:/@+*?!\[\]-]{1,200}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One secret, under a name that may be shown.

    Attributes:
        key_id: 1 to 64 of ``A-Z a-z 0-9 . _ -``; stands in signatures and rows.
        secret: at least :data:`MIN_SECRET` bytes.
        tenants: for whom the key is good, UUIDs as rows spell them; empty for all.
        personas: who may use it, ``fnmatch`` patterns in which case counts; empty for all.

    Raises:
        ValueError: a part is malformed; the text names it.
    """

    key_id: str
    secret: bytes = field(repr=False)
    tenants: frozenset[str] = frozenset()
    personas: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _is(self.key_id, _ID):
            raise ValueError("id takes text of 1 to 64 letters, digits and . _ -")
        if len(self.secret) < MIN_SECRET:
            raise ValueError(f"secret takes at least {MIN_SECRET} characters")

    def allows(self, tenant_id: str, persona: str | None = None) -> bool:
        """Whether the key is good for this tenant and, where one is given, for this persona."""
        if self.tenants and tenant_id not in self.tenants:
            return False
        if persona is None or not self.personas:
            return True
        return any(fnmatchcase(persona, pattern) for pattern in self.personas)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of one setting, in its order; false when there is none.

    Raises:
        ValueError: two keys have one id.
    """

    keys: tuple[Key, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        ids = [key.key_id for key in self.keys]
        for position, key_id in enumerate(ids):
            if (first := ids.index(key_id)) != position:
                raise ValueError(f"[{position}].id takes an id of its own, it is that of [{first}]")

    def __bool__(self) -> bool:
        return bool(self.keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.key_id for key in self.keys)})"

    def first_for(self, tenant_id: str, persona: str | None = None) -> Key | None:
        """The first key that allows the caller."""
        for key in self.keys:
            if key.allows(tenant_id, persona):
                return key
        return None

    def find(self, key_id: str) -> Key | None:
        """The key of that id."""
        for key in self.keys:
            if key.key_id == key_id:
                return key
        return None

    @classmethod
    def parse(cls, raw: object) -> KeyRing:
        """The keys of a setting.

        Args:
            raw: a list of ``{"id": ..., "secret": ..., "tenants": [...], "personas": [...]}``, the
                last two optional, or the same as JSON text. A secret is used as its UTF-8 bytes.

        Raises:
            ValueError: it is something else; the text names position and field, never a value.
        """
        entries = json_of(raw, _SHAPE) if isinstance(raw, str) else raw
        if not isinstance(entries, list | tuple):
            raise ValueError(_SHAPE)
        return cls(tuple(_key(position, entry) for position, entry in enumerate(entries)))


_SHAPE: Final = 'takes a list of {"id": ..., "secret": ...}, or JSON text of one'


def json_of(text: str, shape: str) -> object:
    """The JSON of a setting that may hold secrets.

    Raises:
        ValueError: it is none, or an object of it has a member twice; the text says ``shape``, and
            neither it nor its context holds a value.
    """
    try:
        return json.loads(text, object_pairs_hook=_members)
    except (ValueError, RecursionError):
        pass
    # Out here, because inside the handler the decoder's error, which holds the whole text, would
    # hang on to this one as its __context__.
    raise ValueError(f"{shape}; this is no JSON")


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A limit that is given twice must not widen into the later one without a word."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError
    return members


def _key(position: int, entry: object) -> Key:
    if not isinstance(entry, Mapping) or not entry.keys() <= _READERS.keys():
        raise ValueError(f"[{position}] takes an object of {', '.join(_READERS)} and nothing else")
    try:
        parts = {name: read(entry[name]) for name, read in _READERS.items() if name in entry}
        return Key(key_id=parts.pop("id", ""), secret=parts.pop("secret", b""), **parts)
    except ValueError as error:
        fault = str(error)
    raise ValueError(f"[{position}].{fault}")


def _secret(raw: object) -> bytes:
    if not isinstance(raw, str) or len(raw) < MIN_SECRET:
        raise ValueError(f"secret takes text of at least {MIN_SECRET} characters")
    if any("\ud800" <= character <= "\udfff" for character in raw):
        raise ValueError("secret takes text that has a UTF-8 form")
    return raw.encode()


def _tenants(raw: object) -> frozenset[str]:
    return frozenset(tenant.lower() for tenant in _texts("tenants", raw, _TENANT, "UUIDs"))


def _personas(raw: object) -> tuple[str, ...]:
    return tuple(_texts("personas", raw, _PATTERN, "patterns like cuo-*@1.*"))


def _texts(field_name: str, raw: object, shape: re.Pattern[str], what: str) -> list[str]:
    # An empty list could mean none as well as all, and a template that fills in nothing means none.
    if isinstance(raw, list | tuple) and raw and all(_is(item, shape) for item in raw):
        return list(raw)
    raise ValueError(f"{field_name} takes a list of {what}, none of them nil; left out, it is all")


def _is(value: object, shape: re.Pattern[str]) -> bool:
    return isinstance(value, str) and shape.fullmatch(value) is not None


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "id": lambda raw: raw,
    "secret": _secret,
    "tenants": _tenants,
    "personas": _personas,
}
