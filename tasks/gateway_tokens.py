"""Who may call through the gateway, and whom a caller may name: bearer tokens.

A token is 32 to 512 characters of what RFC 6750 allows, and the gateway keeps its SHA-256 alone.
What is guaranteed:

* nothing is open by itself: a token names its tenants and personas, and each ``["*"]`` for all is
  written out; humans (``on_behalf_of``) it may name only where a list of patterns says so;
* finding a token takes the same time whichever it is, and whether it is one;
* no text made here shows a token, its hash, or any other value of the setting.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from audit.context import InvocationContext
from audit.errors import SettingsError
from audit.keys import json_of

#: RFC 6750, section 2.1 (b64token), of a length that nobody guesses.
TOKEN: Final = re.compile(r"(?=.{32,512}\Z)[A-Za-z0-9._~+/-]+=*")

_NAME: Final = "audit_gateway_tokens (or AUDIT_GATEWAY_TOKENS)"
_SHAPE: Final = (
    'takes a list of {"id": ..., "sha256": ..., "tenants": [...], "personas": [...]}, as JSON or in'
    " a JSON file"
)
_FIELDS: Final = frozenset({"id", "sha256", "secret", "tenants", "personas", "on_behalf_of"})
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")
_PATTERN: Final = re.compile(r"[A-Za-z0-9._:/@+*?!\[\]-]{1,200}")
_TENANT: Final = re.compile(r"\*|(?![0-]+$)[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One caller of the gateway.

    Attributes:
        token_id: its name, which may be shown.
        digest: the SHA-256 of the token.
        tenants: UUIDs as rows spell them, or ``*``.
        personas: ``fnmatch`` patterns in which case counts.
        humans: likewise, for ``on_behalf_of``; empty: it may name none.
    """

    token_id: str
    digest: bytes = field(repr=False)
    tenants: frozenset[str]
    personas: tuple[str, ...]
    humans: tuple[str, ...] = ()

    def allows_tenant(self, tenant_id: str) -> bool:
        """Whether the caller may call for this tenant, and see how its invocations ended."""
        return "*" in self.tenants or tenant_id in self.tenants

    def refusal(self, context: InvocationContext) -> str | None:
        """What of the context the caller may not name; ``None`` where it may name all."""
        if not self.allows_tenant(context.tenant_id):
            return "this tenant"
        if not _fits(context.caller_persona, self.personas):
            return "this persona"
        if context.on_behalf_of is not None and not _fits(context.on_behalf_of, self.humans):
            return "this human"
        return None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one gateway; at least one."""

    tokens: tuple[Token, ...]

    def find(self, presented: str) -> Token | None:
        """The token that was presented. Every one is compared, whichever it is."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest()
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    @classmethod
    def read(cls, setting: str | None) -> Tokens:
        """The tokens that ``audit_gateway_tokens`` names.

        Raises:
            SettingsError: there are none, or one is malformed; the text says where.
        """
        if setting is None:
            raise SettingsError(f"{_NAME} is not set: without tokens the gateway does not start")
        try:
            return cls(_tokens(_document(setting)))
        except ValueError as error:
            fault = str(error)
        raise SettingsError(f"{_NAME}: {fault}")


def _document(setting: str) -> object:
    """The JSON in the setting, or in the file that it names."""
    if not setting.lstrip().startswith(("[", "{")):
        try:
            setting = Path(setting).read_text(encoding="utf-8")
        except (OSError, ValueError):
            raise ValueError(f"{_SHAPE}; there is no such file, or it cannot be read") from None
    return json_of(setting, _SHAPE)


def _tokens(listed: object) -> tuple[Token, ...]:
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{_SHAPE}, of one at least")
    tokens = tuple(_token(f"[{position}]", entry) for position, entry in enumerate(listed))
    for what, values in (
        ("id", [token.token_id for token in tokens]),
        ("sha256 or secret", [token.digest for token in tokens]),
    ):
        if len(set(values)) < len(values):
            raise ValueError(f"each token takes {what} of its own, two have the same")
    return tokens


def _token(place: str, entry: object) -> Token:
    if not isinstance(entry, Mapping) or not entry.keys() <= _FIELDS:
        raise ValueError(f"{place} takes an object of {', '.join(sorted(_FIELDS))}, nothing else")
    if not _is(entry.get("id"), _ID):
        raise ValueError(f"{place}.id takes text of 1 to 64 letters, digits and . _ -")
    tenants = _texts(f"{place}.tenants", entry.get("tenants"), _TENANT, 'UUIDs, or ["*"] for all')
    patterns = 'patterns like cuo-*@1.*, or ["*"] for all'
    humans = entry.get("on_behalf_of")
    return Token(
        token_id=entry["id"],
        digest=_digest(place, entry),
        tenants=frozenset(tenant.lower() for tenant in tenants),
        personas=_texts(f"{place}.personas", entry.get("personas"), _PATTERN, patterns),
        humans=(
            ()
            if humans is None
            else _texts(f"{place}.on_behalf_of", humans, _PATTERN, "patterns like *@example.org")
        ),
    )


def _digest(place: str, entry: Mapping[str, Any]) -> bytes:
    if ("sha256" in entry) == ("secret" in entry):
        raise ValueError(f"{place} takes either sha256 or secret")
    if "sha256" in entry:
        if not _is(entry["sha256"], _SHA256):
            raise ValueError(f"{place}.sha256 takes the token's SHA-256, 64 hex digits")
        return bytes.fromhex(entry["sha256"])
    if not _is(entry["secret"], TOKEN):
        raise ValueError(
            f"{place}.secret takes 32 to 512 letters, digits and . _ ~ + / -, = at its end"
        )
    return hashlib.sha256(entry["secret"].encode()).digest()


def _texts(place: str, raw: object, shape: re.Pattern[str], what: str) -> tuple[str, ...]:
    if isinstance(raw, list) and raw and all(_is(item, shape) for item in raw):
        return tuple(raw)
    raise ValueError(f"{place} takes a list of {what}")


def _is(value: object, shape: re.Pattern[str]) -> bool:
    return isinstance(value, str) and shape.fullmatch(value) is not None


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
