"""tasks/gateway_tokens.py: whose token it is, and what a token must say of itself."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from audit.context import InvocationContext
from audit.errors import SettingsError
from tasks.gateway_tokens import Tokens
from tests.support import TENANT

SECRET = "s3cret-0123456789abcdef0123456789ab"
OTHER = "other-0123456789abcdef0123456789abc"
ENTRY: dict[str, Any] = {
    "id": "crm",
    "secret": SECRET,
    "tenants": [TENANT.upper()],
    "personas": ["cuo-*"],
}


def read(*entries: Any) -> Tokens:
    return Tokens.read(json.dumps(entries))


def test_a_token_is_found_by_itself_or_by_its_hash() -> None:
    """Either may stand in the setting; what is nobody's is found as nobody."""
    digest = hashlib.sha256(OTHER.encode()).hexdigest().upper()
    hashed = {k: v for k, v in ENTRY.items() if k != "secret"} | {"id": "erp", "sha256": digest}
    tokens = read(ENTRY, hashed)
    found = [tokens.find(presented) for presented in (SECRET, OTHER, SECRET[:-1], digest, "")]
    assert [token and token.token_id for token in found] == ["crm", "erp", None, None, None]


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However early the right one comes."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    tokens = read(ENTRY, {**ENTRY, "id": "b", "secret": OTHER})
    for presented in (SECRET, OTHER, "nobody's"):
        compared.clear()
        tokens.find(presented)
        assert len(compared) == 2


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        ({}, None),
        ({"tenants": ["*"]}, None),
        ({"tenants": ["7b8c1d9e-4c56-4f0a-9a53-0d6f2a1e8b47"]}, "this tenant"),
        ({"personas": ["CUO-*"]}, "this persona"),
        ({"personas": ["cuo-cpo@0.4.?"]}, None),
    ],
)
def test_whom_a_token_may_name(limits: dict[str, Any], refusal: str | None) -> None:
    """Tenants by their id, personas by pattern, in which case counts."""
    token = read({**ENTRY, **limits}).tokens[0]
    assert token.refusal(InvocationContext("cuo-cpo@0.4.1", TENANT)) == refusal


def test_a_human_must_be_allowed() -> None:
    """A token that says nothing of humans may name none."""
    context = InvocationContext("cuo-cpo@1", TENANT, on_behalf_of="jane@example.org")
    assert read(ENTRY).tokens[0].refusal(context) == "this human"
    allowed = {**ENTRY, "on_behalf_of": ["*@example.org"]}
    assert read(allowed).tokens[0].refusal(context) is None


def test_the_setting_may_be_a_file(tmp_path: Path) -> None:
    """As a secret is mounted."""
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps([ENTRY]))
    assert Tokens.read(str(path)) == read(ENTRY)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in ENTRY.items() if key != name}


@pytest.mark.parametrize(
    "setting",
    [
        None,
        "[]",
        "{}",
        "[1",
        f'[{{"id": "a", "id": "{SECRET}"}}]',
        f"/nowhere/{SECRET}",
        "[" * 100_000,
        *map(
            json.dumps,
            (
                [SECRET],
                [without("tenants")],
                [without("personas")],
                [without("secret")],
                [without("id")],
                [{**ENTRY, "sha256": "0" * 64}],
                [{**ENTRY, "secret": SECRET[:31]}],
                [{**ENTRY, "secret": SECRET + " "}],
                [{**without("secret"), "sha256": SECRET}],
                [{**ENTRY, "tenants": []}],
                [{**ENTRY, "tenants": "*"}],
                [{**ENTRY, "tenants": [SECRET]}],
                [{**ENTRY, "tenants": ["00000000-0000-0000-0000-000000000000"]}],
                [{**ENTRY, "personas": []}],
                [{**ENTRY, "personas": ["a b"]}],
                [{**ENTRY, "on_behalf_of": []}],
                [{**ENTRY, SECRET: 1}],
                [ENTRY, {**ENTRY, "secret": OTHER}],
                [ENTRY, {**ENTRY, "id": "b"}],
            ),
        ),
    ],
)
def test_what_are_no_tokens(setting: str | None) -> None:
    """The gateway does not start, and the error names the setting and no value of it."""
    with pytest.raises(SettingsError, match="audit_gateway_tokens") as caught:
        Tokens.read(setting)
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"
    assert caught.value.__context__ is None


def test_no_repr_shows_a_token() -> None:
    """Nor its hash."""
    shown = repr(read(ENTRY))
    assert "crm" in shown
    assert SECRET not in shown
    assert hashlib.sha256(SECRET.encode()).hexdigest()[:8] not in shown
    assert "digest" not in shown
