"""Status links: which message, for which tenant, signed, so that no table is needed.

A link holds the task id, the tenant and an HMAC-SHA256 over both, in the 86 characters of
base64url. Any gateway that has the key knows from the link alone whose invocation it is, after a
restart too; nobody without the key can make a link to somebody else's, whatever task ids they know.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from audit.errors import SettingsError
from audit.keys import Key, KeyRing

#: Signed before everything else, so that what another use of a key signed is no link.
_PURPOSE: Final = b"audit-gateway-status-1:"
_SIZE: Final = 64
_UUID: Final = 16


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a status link says: the message, and the tenant it was published for."""

    task_id: str
    tenant_id: str


class StatusLinks:
    """Makes and reads links.

    Raises:
        SettingsError: there is no key.
    """

    def __init__(self, keys: KeyRing) -> None:
        if not keys:
            raise SettingsError(
                "audit_gateway_keys (or AUDIT_GATEWAY_KEYS) is not set: the gateway signs its"
                ' status links, give it [{"id": ..., "secret": ...}], the same in each process'
            )
        self._keys = keys.keys

    def make(self, ticket: Ticket) -> str:
        """The text of a link, signed with the first key."""
        said = UUID(ticket.task_id).bytes + UUID(ticket.tenant_id).bytes
        return base64.urlsafe_b64encode(said + _mac(self._keys[0], said)).decode().rstrip("=")

    def read(self, link: str) -> Ticket | None:
        """What a link says; ``None`` for whatever was not made with one of the keys."""
        try:
            raw = base64.b64decode(link + "==", altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        said, mac = raw[: 2 * _UUID], raw[2 * _UUID :]
        if len(raw) != _SIZE or not self._signed(said, mac):
            return None
        return Ticket(str(UUID(bytes=said[:_UUID])), str(UUID(bytes=said[_UUID:])))

    def _signed(self, said: bytes, mac: bytes) -> bool:
        return any(hmac.compare_digest(_mac(key, said), mac) for key in self._keys)


def _mac(key: Key, said: bytes) -> bytes:
    return hmac.digest(key.secret, _PURPOSE + said, "sha256")
