"""tasks/gateway_links.py: a status link says what was signed, or nothing."""

from __future__ import annotations

import base64
from uuid import uuid4

import pytest

from audit.errors import SettingsError
from audit.keys import KeyRing
from tasks.gateway_links import StatusLinks, Ticket
from tests.support import TENANT

OLD = {"id": "old", "secret": "old-0123456789abcdef0123456789abcdef"}
NEW = {"id": "new", "secret": "new-0123456789abcdef0123456789abcdef"}


def links(*keys: dict[str, str]) -> StatusLinks:
    return StatusLinks(KeyRing.parse(keys))


def test_a_link_says_message_and_tenant() -> None:
    """Any gateway with the key reads it; it needs no escaping in an address."""
    ticket = Ticket(str(uuid4()), TENANT)
    link = links(NEW).make(ticket)
    assert links(NEW).read(link) == ticket
    assert len(link) == 86
    assert set(link) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_keys_are_changed_without_a_gap() -> None:
    """The first signs, all verify; one that was left out verifies no more."""
    ticket = Ticket(str(uuid4()), TENANT)
    old = links(OLD).make(ticket)
    assert links(NEW, OLD).read(old) == ticket
    assert links(NEW, OLD).make(ticket) == links(NEW).make(ticket)
    assert links(NEW).read(old) is None


def test_every_bit_counts() -> None:
    """Whichever of message, tenant and signature is altered: no link."""
    link = links(NEW).make(Ticket(str(uuid4()), TENANT))
    raw = base64.urlsafe_b64decode(link + "==")
    for place in range(len(raw)):
        altered = bytes((*raw[:place], raw[place] ^ 1, *raw[place + 1 :]))
        assert links(NEW).read(base64.urlsafe_b64encode(altered).decode().rstrip("=")) is None


@pytest.mark.parametrize("text", ["", "A", "A" * 86, "é" * 86, "A" * 200, "=" * 86, "a.b"])
def test_what_is_no_link(text: str) -> None:
    """Whatever a caller writes is an answer, not an error."""
    assert links(NEW).read(text) is None


def test_there_must_be_a_key() -> None:
    """Without one nobody could be told from anybody."""
    with pytest.raises(SettingsError, match="audit_gateway_keys"):
        StatusLinks(KeyRing())
