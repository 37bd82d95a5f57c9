"""audit/signing.py: what a signature proves, and that nothing else passes for a proof."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from audit.canonical import canonical_bytes
from audit.errors import ExpiredContextError, InvalidInvocationContext, UnprovenContextError
from audit.keys import KeyRing
from audit.signing import UNSIGNED, Claim, sign, verify
from tests.support import TENANT, TRACE_ID

OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
PARENT = "01JDVZ3W4MC2QH7K9T5N8XBPDE"
SECRET, ANOTHER = "s" * 32, "t" * 32
NOW = 1_796_000_000.75
DAY = 86400.0
HEADERS: dict[str, Any] = {
    "lang": "py",
    "task": "alerts.triage",
    "id": "7f1f4c1e-93a1-4f0f-9d0c-1f3f6d1f7a10",
    "shadow": None,
    "eta": None,
    "expires": "2026-12-01T00:00:00+00:00",
    "group": "2f6d1c1e-3a1b-4f0f-9d0c-1f3f6d1f7a11",
    "group_index": 1,
    "retries": 2,
    "timelimit": [None, 30.5],
    "stamped_headers": ["link"],
    "stamps": {"link": [], "a": {"b": 1}},
    "audit_persona": "cuo-cpo@0.4.1",
    "audit_tenant_id": TENANT,
    "audit_parent_request_id": PARENT,
    "traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01",
}
CLAIM = Claim(
    headers=HEADERS,
    content_type="application/json",
    content_encoding="utf-8",
    body=b'[["hunter2"], {}, {"chain": null}]',
)
#: What is signed beside the headers, and the headers that are used here: all of them text.
TEXTS = ["content_type", "content_encoding"]
USED = {"persona": "audit_persona", "tenant_id": "audit_tenant_id", "eta": "eta"}


def having(**headers: Any) -> Claim:
    """The claim with other headers."""
    return replace(CLAIM, headers={**HEADERS, **headers})


def ring(key_id: str = "2026.a", secret: str = SECRET, **limits: Any) -> KeyRing:
    return KeyRing.parse([{"id": key_id, "secret": secret, **limits}])


def rings(*parts: KeyRing) -> KeyRing:
    return KeyRing(tuple(key for part in parts for key in part.keys))


# --- what holds -----------------------------------------------------------------------------------


def test_a_signature_to_the_letter() -> None:
    """Version, key id, when, and HMAC-SHA256 of the prefix and the JSON array, by hand."""
    parts = [
        "2026.a", 1796000000, "application/json", "utf-8",
        hashlib.sha256(CLAIM.body).hexdigest(), sorted(map(list, HEADERS.items())),
    ]  # fmt: skip
    signed = b"audit-context-1:" + json.dumps(parts, separators=(",", ":")).encode()
    mac = hmac.new(SECRET.encode(), signed, "sha256").hexdigest()
    assert sign(ring(), CLAIM, NOW) == f"1:2026.a:1796000000:{mac}"


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.text().filter(lambda name: name not in UNSIGNED and not name.startswith("x-"))
claims = st.builds(
    Claim,
    headers=st.builds(
        lambda others, used: {**others, **used},
        st.dictionaries(names, json_values, max_size=4),
        st.fixed_dictionaries(
            {"eta": st.none() | st.datetimes().map(lambda moment: moment.isoformat())},
            optional={name: st.none() | st.text() for name in ("audit_persona", "audit_tenant_id")},
        ),
    ),
    content_type=st.none() | st.text(),
    content_encoding=st.none() | st.text(),
    body=st.binary(),
)


def spelled(claim: Claim) -> str:
    """What tells two claims apart: ``1 == True == 1.0``, and NaN is not itself."""
    parts = [sorted(claim.headers.items()), claim.content_type, claim.content_encoding]
    return json.dumps([*parts, claim.body.hex()])


@given(claims, st.floats(0, 2e9))
def test_whatever_is_signed_verifies(claim: Claim, now: float) -> None:
    """Any JSON in any header, lone surrogates and NaN too; the answer is the key's id."""
    assert verify(ring(), claim, sign(ring(), claim, now), now, DAY) == "2026.a"


def test_what_a_transport_makes_of_it_verifies() -> None:
    """Headers in another order, lists for tuples; kombu's and the brokers' own beside them."""
    claim = having(timelimit=(None, 30.5), stamps={"link": (), "a": {"b": 1}})
    arrived = json.loads(json.dumps(dict(reversed(claim.headers.items()))))
    arrived |= {"compression": "application/x-gzip", "redelivered": True, "audit_signature": "x"}
    arrived |= {"x-delivery-count": 2, "x-death": [{"count": 1}]}
    received = replace(CLAIM, headers=arrived)
    assert verify(ring(), received, sign(ring(), claim, NOW), NOW, DAY) == "2026.a"


def test_keys_are_changed_without_a_gap() -> None:
    """The first key signs and all verify: workers learn the new key first, callers later."""
    old, new = ring("old"), ring("new", ANOTHER)
    by_old, by_new = sign(rings(old, new), CLAIM, NOW), sign(rings(new, old), CLAIM, NOW)
    for known in (rings(old, new), rings(new, old)):
        assert verify(known, CLAIM, by_old, NOW, DAY) == "old"
        assert verify(known, CLAIM, by_new, NOW, DAY) == "new"
    with pytest.raises(UnprovenContextError, match="audit_context_keys of this host"):
        verify(new, CLAIM, by_old, NOW, DAY)


# --- what does not --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", "other", None])
def test_an_altered_text_is_found(name: str, value: str | None) -> None:
    """Each field is signed, and none is another than empty."""
    altered = replace(CLAIM, **{name: value})
    with pytest.raises(UnprovenContextError, match="not of this message"):
        verify(ring(), altered, sign(ring(), CLAIM, NOW), NOW, DAY)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("value", ["", "2026-11-29T21:45:38+00:00", None, "gone"])
def test_an_altered_header_is_found(name: str, value: str | None) -> None:
    """Each one is signed; none is another than empty, nor than one that is not there."""
    altered = having(**{name: value})
    if value == HEADERS[name]:
        altered = having(**{name: "other"})
    if value == "gone":
        altered = replace(CLAIM, headers={k: v for k, v in HEADERS.items() if k != name})
    with pytest.raises(UnprovenContextError, match="not of this message"):
        verify(ring(), altered, sign(ring(), CLAIM, NOW), NOW, DAY)


@pytest.mark.parametrize(
    "added",
    [
        {"unknown": None}, {"": 1}, {"chain": [{"task": "x"}]}, {"X-Death": 1}, {"retries": True},
        {"group_index": 1.0}, {"retries": "2"}, {"stamps": {"a": {"b": 1}, "link": []}},
        {"Compression": "gzip"}, {"audit_signature ": "x"},
    ],
)  # fmt: skip
def test_what_is_added_to_the_headers_is_found(added: dict[str, Any]) -> None:
    """A new one, another type of the same number, another order within a header."""
    with pytest.raises(UnprovenContextError, match="not of this message"):
        verify(ring(), having(**added), sign(ring(), CLAIM, NOW), NOW, DAY)


@pytest.mark.parametrize("body", [b"", CLAIM.body + b" "])
def test_an_altered_body_is_found(body: bytes) -> None:
    """Arguments, callbacks and chain are in the body: a blank more is another message."""
    with pytest.raises(UnprovenContextError, match="not of this message"):
        verify(ring(), replace(CLAIM, body=body), sign(ring(), CLAIM, NOW), NOW, DAY)


@given(claims, claims)
def test_no_two_claims_share_a_signature(one: Claim, other: Claim) -> None:
    """Whatever the texts hold: what parts the fields cannot be written into one of them."""
    assume(spelled(one) != spelled(other))
    with pytest.raises(UnprovenContextError):
        verify(ring(), other, sign(ring(), one, NOW), NOW, DAY)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 'x"],["b","y'}, {"a": "x", "b": "y"}),
        ({"a": "b", "c": "d"}, {"a": 'b"],["c', "d": ""}),
        ({"a": ["b"]}, {"a": '["b"]'}),
        ({'a",1],["b': 1}, {"a": 1, "b": 1}),
    ],
)
def test_a_value_cannot_move_into_the_next_field(one: dict[str, Any], other: Any) -> None:
    """Neither as it is nor with the quotes and brackets of the array."""
    with pytest.raises(UnprovenContextError):
        verify(ring(), having(**other), sign(ring(), having(**one), NOW), NOW, DAY)
    part, whole = replace(CLAIM, content_type='a","b'), replace(CLAIM, content_type="a")
    with pytest.raises(UnprovenContextError):
        verify(ring(), whole, sign(ring(), part, NOW), NOW, DAY)


def test_a_signature_is_of_its_key_and_its_time() -> None:
    """Another id over the same secret, and another time, are alterations too."""
    _, key_id, issued, mac = sign(ring("a"), CLAIM, NOW).split(":")
    both = rings(ring("a"), ring("b"))
    assert verify(both, CLAIM, f"1:{key_id}:{issued}:{mac}", NOW, DAY) == "a"
    for header in (f"1:b:{issued}:{mac}", f"1:a:{int(issued) + 1}:{mac}"):
        with pytest.raises(UnprovenContextError, match="not of this message"):
            verify(both, CLAIM, header, NOW, DAY)


def test_another_secret_under_the_same_id_proves_nothing() -> None:
    """The id is no proof."""
    with pytest.raises(UnprovenContextError, match="not of this message"):
        verify(ring(), CLAIM, sign(ring(secret=ANOTHER), CLAIM, NOW), NOW, DAY)


GOOD = sign(ring(), CLAIM, NOW)
MAC = GOOD.rpartition(":")[2]


@pytest.mark.parametrize(
    "header",
    [
        "", GOOD + "\n", " " + GOOD, GOOD.upper(), GOOD[:-1], GOOD + "0", GOOD.replace("1:", "2:"),
        GOOD.replace(":1796000000:", ":01796000000:"), GOOD.replace(":1796", ":+1796"),
        GOOD.replace(":1796000000:", ":-1:"), GOOD.replace(":1796000000:", ":1796000000.5:"),
        GOOD.replace(":1796000000:", "::"), GOOD.replace(":1796000000:", f":{'9' * 5000}:"),
        GOOD.replace("1796", "\uff11\uff17\uff19\uff16"),
        MAC, f"1:2026.a:{MAC}", f"x:{GOOD}", f"{GOOD}:x",
        GOOD.encode(), [GOOD], {"audit_signature": GOOD}, 5, True, 0, "\ud800", GOOD.split(":"),
    ],
)  # fmt: skip
def test_what_is_no_signature(header: object) -> None:
    """One spelling only, and only text."""
    with pytest.raises(UnprovenContextError, match="malformed"):
        verify(ring(), CLAIM, header, NOW, DAY)


def test_no_signature_at_all() -> None:
    """Its text says what the publisher needs."""
    with pytest.raises(UnprovenContextError, match=r"not signed.*audit_context_keys"):
        verify(ring(), CLAIM, None, NOW, DAY)


def test_without_keys_nothing_is_proven() -> None:
    """A ring without keys neither signs nor verifies."""
    with pytest.raises(UnprovenContextError):
        verify(KeyRing(), CLAIM, GOOD, NOW, DAY)
    with pytest.raises(InvalidInvocationContext):
        sign(KeyRing(), CLAIM, NOW)


@pytest.mark.parametrize(
    "limits",
    [{"tenants": [OTHER]}, {"personas": ["cmo-*"]}, {"tenants": [TENANT], "personas": ["CUO-*"]}],
)
def test_a_key_signs_and_proves_only_what_it_is_for(limits: dict[str, Any]) -> None:
    """On both ends: a publisher whose copy of the key has no limits proves no more by it."""
    with pytest.raises(InvalidInvocationContext, match="audit_context_keys"):
        sign(ring(**limits), CLAIM, NOW)
    with pytest.raises(UnprovenContextError, match="not for this tenant and persona"):
        verify(ring(**limits), CLAIM, GOOD, NOW, DAY)


@pytest.mark.parametrize("name", ["tenant_id", "persona"])
def test_a_limited_key_proves_no_message_without_a_caller(name: str) -> None:
    """No tenant, or no persona, is none of those it is for."""
    nobody = having(**{USED[name]: None})
    limited = ring(tenants=[TENANT], personas=["*-*"])
    assert verify(limited, CLAIM, GOOD, NOW, DAY) == "2026.a"
    with pytest.raises(UnprovenContextError, match="not for this tenant and persona"):
        verify(limited, nobody, sign(ring(), nobody, NOW), NOW, DAY)


def test_the_second_key_signs_where_the_first_may_not() -> None:
    """The first that may."""
    keys = rings(ring("a", tenants=[OTHER]), ring("b", ANOTHER))
    assert sign(keys, CLAIM, NOW).startswith("1:b:")
    assert sign(keys, having(audit_tenant_id=OTHER), NOW).startswith("1:a:")


# --- age ------------------------------------------------------------------------------------------

ISSUED = int(NOW)


@pytest.mark.parametrize(
    ("eta", "now", "fresh"),
    [
        (None, ISSUED + 60, True),
        (None, ISSUED + 60.5, False),
        (None, ISSUED - 3600, True),
        # 2026-11-30 is after ISSUED, 2026-11-01 before.
        ("2026-11-30T12:00:00+00:00", 1796040000 + 60, True),
        ("2026-11-30T12:00:00+00:00", 1796040000 + 61, False),
        ("2026-11-30T12:00:00Z", 1796040000 + 60, True),
        ("2026-11-30T12:00:00", 1796040000 + 60, True),
        ("2026-11-30T12:00:00", 1796040000 + 61, False),
        ("2026-11-30T14:00:00.5+02:00", 1796040000 + 60.5, True),
        ("2026-11-30T14:00:00+02:00", 1796040000 + 61, False),
        ("2026-11-01T00:00:00+00:00", ISSUED + 60, True),
        ("2026-11-01T00:00:00+00:00", ISSUED + 61, False),
        ("0001-01-01T00:00:00+14:00", ISSUED + 61, False),
        ("9999-12-31T23:59:59-14:00", ISSUED + 61, True),
    ],
)
def test_a_signature_grows_old(eta: str | None, now: float, fresh: bool) -> None:
    """Counted from when it was made, or from the ETA where that is later; naive is UTC."""
    claim = having(eta=eta)
    header = sign(ring(), claim, NOW)
    if fresh:
        assert verify(ring(), claim, header, now, 60) == "2026.a"
    else:
        with pytest.raises(ExpiredContextError, match=r"more than 60 seconds.*max_age"):
            verify(ring(), claim, header, now, 60)


@pytest.mark.parametrize("eta", ["", "tomorrow", "2026-13-01T00:00:00", "\ud800", "2026-11-30T25"])
def test_an_unreadable_eta_is_unproven(eta: str) -> None:
    """Even where it is signed: nobody can say how old that is."""
    claim = having(eta=eta)
    with pytest.raises(UnprovenContextError, match="ISO 8601") as caught:
        verify(ring(), claim, sign(ring(), claim, NOW), NOW, DAY)
    assert not isinstance(caught.value, ExpiredContextError)
    assert caught.value.__context__ is None


def test_an_old_forgery_is_a_forgery() -> None:
    """What does not hold is not called old."""
    with pytest.raises(UnprovenContextError) as caught:
        verify(ring(), having(retries=0), GOOD, NOW + 9 * DAY, DAY)
    assert type(caught.value) is UnprovenContextError


# --- garbage --------------------------------------------------------------------------------------

signature_like = st.from_regex(r"1:[A-Za-z0-9._-]{1,64}:[0-9]{1,14}:[0-9a-f]{64}", fullmatch=True)


@given(
    st.dictionaries(st.sampled_from([*HEADERS, "more"]), json_values),
    st.dictionaries(st.sampled_from([*TEXTS, "body", "headers"]), json_values),
    json_values | signature_like | st.sampled_from([GOOD, GOOD.replace("0", "1")]),
)
def test_any_garbage_is_unproven(
    headers: dict[str, Any], changes: dict[str, Any], signature: object
) -> None:
    """Any JSON value in any place: never another error, never a proof."""
    claim = replace(having(**headers), **changes)
    if signature == GOOD and not changes and spelled(claim) == spelled(CLAIM):
        assert verify(ring(), claim, signature, NOW, DAY) == "2026.a"
        return
    with pytest.raises(UnprovenContextError):
        verify(ring(), claim, signature, NOW, DAY)


NO_TEXT: list[Any] = [5, b"x", ["x"], float("nan")]


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        *((name, replace(CLAIM, **{name: value})) for name in TEXTS for value in NO_TEXT),
        *((name, having(**{USED[name]: value})) for name in USED for value in NO_TEXT),
        *(("body", replace(CLAIM, body=value)) for value in ("text", None, ["x"])),  # type: ignore[arg-type]
        *(("headers", replace(CLAIM, headers=value)) for value in (None, ["x"], "x")),  # type: ignore[arg-type]
    ],
)
def test_what_is_used_is_of_its_type(name: str, claim: Claim) -> None:
    """The error names the part; the worker could not verify it, so the caller hears of it."""
    with pytest.raises(InvalidInvocationContext, match=f"^{name} of the message"):
        sign(ring(), claim, NOW)
    with pytest.raises(UnprovenContextError, match=f"^{name} of the message"):
        verify(ring(), claim, GOOD, NOW, DAY)


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


NO_JSON: list[Any] = [b"x", {"x"}, object(), 10**5000, CIRCLE, [{"a": [Claim]}]]


@pytest.mark.parametrize("value", NO_JSON, ids=range(len(NO_JSON)))
def test_a_header_without_a_json_form_is_not_signed(value: Any) -> None:
    """It would not come out as it went in; the caller is told which one, and no value."""
    with pytest.raises(InvalidInvocationContext, match=r"header \('odd'\).*JSON") as caught:
        sign(ring(), having(odd=value), NOW)
    assert caught.value.__context__ is None
    with pytest.raises(UnprovenContextError, match="a header of the message was never signed"):
        verify(ring(), having(odd=value), GOOD, NOW, DAY)


@pytest.mark.parametrize("name", [5, None, b"x", ("a",)])
def test_a_name_that_is_no_text_is_not_signed(name: Any) -> None:
    """A transport would make text of it."""
    claim = replace(CLAIM, headers={**HEADERS, name: 1})
    with pytest.raises(InvalidInvocationContext, match="names of headers must be text"):
        sign(ring(), claim, NOW)
    with pytest.raises(UnprovenContextError, match="names of headers must be text"):
        verify(ring(), claim, GOOD, NOW, DAY)


def test_a_keyed_hash_is_no_signature() -> None:
    """One secret in both settings: no value's canonical form begins as what is signed does."""
    parts = ["2026.a", 1796000000, CLAIM.content_type]
    assert canonical_bytes(parts)[:1] == b"["
    assert canonical_bytes("audit-context-1:")[:1] == b'"'


def test_no_text_repeats_a_value() -> None:
    """Neither a header's nor a field's, nor the secret."""
    value = "hunter2-4242"
    tries: list[tuple[KeyRing, Claim, object]] = [
        (ring(), CLAIM, value),
        (ring(), CLAIM, GOOD.replace("2026.a", value)),
        (ring(), having(audit_persona=[value]), GOOD),
        (ring(), having(audit_persona=value), GOOD),
        (ring(), having(**{value: b"x"}), GOOD),
        (ring(), having(eta=value), sign(ring(), having(eta=value), NOW)),
        (ring(tenants=[OTHER]), CLAIM, GOOD),
    ]
    for keys, claim, header in tries:
        with pytest.raises(UnprovenContextError) as caught:
            verify(keys, claim, header, NOW, DAY)
        shown = f"{caught.value!r} {caught.value.__context__!r} {caught.value.__cause__!r}"
        for hidden in (value, SECRET, TENANT, MAC, "hunter2"):
            assert hidden not in shown
