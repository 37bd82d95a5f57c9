"""audit/keys.py: which keys a setting gives, whom they allow, and that none is ever shown."""

from __future__ import annotations

import json
import traceback
from contextlib import suppress
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.keys import Key, KeyRing
from audit.row import NIL_TENANT
from tests.support import TENANT

OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
SECRET = "tr0ub4dor-and-3-correct-horse-battery"
ANOTHER = "staple-correct-battery-horse-3-tr0ub4dor"


def entry(key_id: str = "2026-a", secret: str = SECRET, **limits: Any) -> dict[str, Any]:
    return {"id": key_id, "secret": secret, **limits}


# --- whom a key allows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "tenant", "persona", "allowed"),
    [
        ({}, TENANT, "cuo-cpo@1", True),
        ({"tenants": [TENANT]}, TENANT, "cuo-cpo@1", True),
        ({"tenants": [TENANT.upper()]}, TENANT, "cuo-cpo@1", True),
        ({"tenants": [OTHER, TENANT]}, TENANT, None, True),
        ({"tenants": [OTHER]}, TENANT, "cuo-cpo@1", False),
        ({"tenants": [OTHER]}, TENANT, None, False),
        ({"personas": ["cuo-*"]}, TENANT, "cuo-cpo@1", True),
        ({"personas": ["x", "cuo-cpo@[0-9]"]}, TENANT, "cuo-cpo@1", True),
        ({"personas": ["Cuo-*"]}, TENANT, "cuo-cpo@1", False),
        ({"personas": ["cuo-cpo"]}, TENANT, "cuo-cpo@1", False),
        ({"personas": ["cmo-*"]}, TENANT, None, True),
        ({"tenants": [TENANT], "personas": ["cmo-*"]}, TENANT, "cuo-cpo@1", False),
        ({"tenants": [OTHER], "personas": ["cuo-*"]}, TENANT, "cuo-cpo@1", False),
    ],
)
def test_a_key_is_good_within_its_limits(
    limits: dict[str, Any], tenant: str, persona: str | None, allowed: bool
) -> None:
    """Both limits hold, none is all, case counts, and without a persona the tenant alone counts."""
    (key,) = KeyRing.parse([entry(**limits)]).keys
    assert key.allows(tenant, persona) is allowed


def test_the_first_key_that_allows_is_taken() -> None:
    """In the order of the setting; any key is found by its id, whatever it is limited to."""
    ring = KeyRing.parse([entry("a", tenants=[OTHER]), entry("b", personas=["x"]), entry("c")])
    assert [getattr(ring.first_for(tenant), "key_id", "") for tenant in (OTHER, TENANT)] == [
        "a",
        "b",
    ]
    found = ring.first_for(TENANT, "y")
    assert found is not None
    assert found.key_id == "c"
    assert KeyRing.parse([entry("a", tenants=[OTHER])]).first_for(TENANT) is None
    assert [ring.find(name) for name in "abcd"] == [*ring.keys, None]


# --- reading --------------------------------------------------------------------------------------


def test_a_ring_is_the_same_from_a_list_and_from_text() -> None:
    """As Python has it, or as JSON text in an environment variable; order and limits are kept."""
    entries = [
        entry("new.1", "é" * 32, tenants=[TENANT, OTHER.upper()], personas=["a-*", "b"]),
        entry("old_0-x", ANOTHER),
    ]
    ring = KeyRing.parse(entries)
    assert ring == KeyRing.parse(json.dumps(entries)) == KeyRing.parse(tuple(entries))
    assert ring.keys == (
        Key(
            key_id="new.1",
            secret=("é" * 32).encode(),
            tenants=frozenset({TENANT, OTHER}),
            personas=("a-*", "b"),
        ),
        Key(key_id="old_0-x", secret=ANOTHER.encode()),
    )


@pytest.mark.parametrize("nothing", [[], (), "[]"])
def test_a_ring_without_keys_is_false(nothing: Any) -> None:
    """And one with a key is true."""
    assert not KeyRing.parse(nothing)
    assert KeyRing.parse(nothing) == KeyRing()
    assert KeyRing.parse([entry()])


BAD: list[tuple[Any, str]] = [
    *((raw, "takes a list") for raw in (None, 5, SECRET.encode(), entry(), True, "", SECRET, "{}")),
    (json.dumps([entry()])[:-1], "no JSON"),
    ("[" * 200_000, "no JSON"),
    ('[{"id":"a","secret":"%s","tenants":["%s"],"tenants":[]}]' % (SECRET, TENANT), "no JSON"),  # noqa: UP031
    *(([entry("x"), raw], r"\[1\] takes an object") for raw in (None, SECRET, [SECRET], 5)),
    ([entry(secrets=SECRET)], r"\[0\] takes an object of id, secret, tenants, personas"),
    ([entry(**{SECRET: 1})], r"\[0\] takes an object of id, secret, tenants, personas"),
    ([entry("x"), {"secret": SECRET}], r"\[1\]\.id takes"),
    *(
        ([entry("x"), entry(key_id)], r"\[1\]\.id takes text of 1 to 64")  # type: ignore[arg-type]
        for key_id in ("", "a:b", "a b", "é", "a\n", "a" * 65, None, 5, ["a"], b"a", f"{SECRET}:")
    ),
    ([entry("x"), entry("y"), entry("x")], r"\[2\]\.id takes an id of its own.*\[0\]"),
    ([{"id": "a"}], r"\[0\]\.secret takes"),
    *(
        ([entry(secret=secret)], r"\[0\]\.secret takes")  # type: ignore[arg-type]
        for secret in ("", SECRET[:31], None, 10**40, SECRET.encode(), [SECRET], SECRET + "\ud800")
    ),
    *(
        ([entry(tenants=tenants)], r"\[0\]\.tenants takes a list of UUIDs")
        for tenants in (
            [], None, TENANT, {TENANT: 1}, [NIL_TENANT], [TENANT, SECRET], [5], [None], [[TENANT]],
            [TENANT + "\n"], [TENANT[:-1]], [f" {TENANT}"], [""],
        )
    ),
    *(
        ([entry(personas=personas)], r"\[0\]\.personas takes a list of patterns")
        for personas in ([], None, "cuo-*", ["a b"], [""], [5], ["é"], ["a\n"], ["x" * 201])
    ),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "complaint"), BAD)
def test_what_is_no_ring(raw: Any, complaint: str) -> None:
    """The text names position and field; neither it nor its causes hold any value."""
    with pytest.raises(ValueError, match=complaint) as caught:
        KeyRing.parse(raw)
    assert caught.value.__cause__ is caught.value.__context__ is None
    shown = "".join(traceback.format_exception_only(caught.value))
    assert SECRET not in shown
    assert TENANT not in shown


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
fields = st.sampled_from(["id", "secret", "tenants", "personas"])


@given(anything | st.lists(st.dictionaries(fields, anything | st.just(SECRET))))
def test_whatever_a_setting_holds_it_is_a_ring_or_a_value_error(raw: Any) -> None:
    """No other error leaves the reading."""
    with suppress(ValueError):
        assert isinstance(KeyRing.parse(raw), KeyRing)


def test_a_key_made_by_hand_keeps_the_rules() -> None:
    """Its id has nothing in it that would part a signature's words, its secret is long enough."""
    with pytest.raises(ValueError, match="id takes"):
        Key(key_id="a:b", secret=SECRET.encode())
    with pytest.raises(ValueError, match="secret takes"):
        Key(key_id="a", secret=b"short")
    with pytest.raises(ValueError, match="an id of its own"):
        KeyRing((Key(key_id="a", secret=b"x" * 32), Key(key_id="a", secret=b"y" * 32)))


# --- showing --------------------------------------------------------------------------------------


def test_a_secret_is_never_shown() -> None:
    """Not by repr nor str of a key or a ring, in which the ids stand."""
    ring = KeyRing.parse([entry("a"), entry("b", ANOTHER, tenants=[TENANT])])
    for shown in (repr(ring), str(ring), repr(ring.keys), str(ring.keys[1]), f"{ring}{ring.keys}"):
        assert SECRET not in shown
        assert ANOTHER not in shown
    assert repr(ring) == "KeyRing(a, b)"


def test_keys_are_frozen() -> None:
    """Neither a ring nor a key changes."""
    ring = KeyRing.parse([entry()])
    with pytest.raises(FrozenInstanceError):
        ring.keys = ()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        ring.keys[0].tenants = frozenset()  # type: ignore[misc]
