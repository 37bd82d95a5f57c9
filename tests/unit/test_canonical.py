"""The canonical form: RFC 8785, one form on both ends of the wire, and what has none."""

from __future__ import annotations

import enum
import hashlib
import inspect
import json
import math
import re
import struct
import sys
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import kombu.utils.json
import pytest
import rfc8785
from celery.exceptions import SoftTimeLimitExceeded
from hypothesis import assume, given
from hypothesis import strategies as st

from audit.canonical import MAX_DEPTH, arguments_by_name, canonical_bytes, digest
from audit.errors import CanonicalizationError, SkillArgumentsError
from audit.keys import Key

VECTORS = Path(__file__).parents[1] / "vectors"
RFC = json.loads((VECTORS / "rfc8785.json").read_text())
DECISIONS = json.loads((VECTORS / "decisions.json").read_text())

SECRET = "hunter2-4242"


# --- what Hypothesis draws ------------------------------------------------------------------------


def json_key(key: object) -> str:
    """The string that the standard library itself makes of a key."""
    (name,) = json.loads(json.dumps({key: 0}))
    return str(name)


def usable(document: dict[Any, Any]) -> bool:
    """No two keys fall together, and the keys are not the transport's own."""
    names = {json_key(key) for key in document}
    return len(names) == len(document) and names != {"__type__", "__value__"}


finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | st.integers() | finite | st.text()
exact = st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | finite | st.text()
zones = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=45)), timezone.min])
foreign = (
    st.datetimes(timezones=zones)
    | st.dates()
    | st.times(timezones=zones)
    | st.uuids()
    | st.decimals()
    | st.binary()
)
keys = st.text() | st.integers() | st.booleans() | st.none() | finite


def documents(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> Any:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(keys, inner, max_size=4).filter(usable)
        ),
        max_leaves=12,
    )


def identity(document: Any) -> Any:
    """What makes two JSON documents the same: types apart, numbers by their mathematical value."""
    if isinstance(document, dict):
        return "object", frozenset((key, identity(value)) for key, value in document.items())
    if isinstance(document, list | tuple):
        return "array", tuple(identity(item) for item in document)
    if isinstance(document, int | float) and not isinstance(document, bool):
        return "number", document
    return type(document).__name__, document


def number(digits: str) -> float:
    """A number as RFC 8785 means it: a double; up to 2^53 - 1 that is the whole number itself."""
    return int(digits) if abs(int(digits)) < 2**53 else float(digits)


def untag(document: dict[str, Any]) -> Any:
    if document.keys() == {"__type__", "__value__"}:
        assert document["__type__"] == "int"
        return int(document["__value__"])
    return document


def through_kombu(document: object) -> Any:
    return kombu.utils.json.loads(kombu.utils.json.dumps(document))


# --- RFC 8785 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", RFC["documents"], ids=lambda vector: vector["section"])
def test_rfc_document(vector: dict[str, str]) -> None:
    """The RFC's document comes out as its text says, and as its bytes say."""
    form = canonical_bytes(json.loads(vector["json"]))
    assert form.decode() == vector["canonical"]
    assert form == bytes.fromhex(vector["utf8"])


def test_rfc_sorting() -> None:
    """Keys are sorted by their UTF-16 code units, as in the RFC's example."""
    form = canonical_bytes(json.loads(RFC["sorting"]["json"]))
    assert list(json.loads(form).values()) == RFC["sorting"]["values_in_order"]


@pytest.mark.parametrize("sample", RFC["numbers"]["samples"], ids=lambda sample: sample["ieee754"])
def test_rfc_number(sample: dict[str, Any]) -> None:
    """Every double of the RFC's table has the RFC's text, and NaN and infinity have none."""
    (number,) = struct.unpack(">d", bytes.fromhex(sample["ieee754"]))
    if sample["json"] is None:
        with pytest.raises(CanonicalizationError):
            canonical_bytes(number)
    else:
        assert canonical_bytes(number).decode() == sample["json"]


def test_astral_key_sorts_before_fullwidth_key() -> None:
    """U+10000 sorts before U+FF21, whose code point is smaller: UTF-16 decides."""
    form = canonical_bytes({"\uff21": 1, "\U00010000": 2}).decode()
    assert form == '{"\U00010000":2,"\uff21":1}'


@given(documents(exact, st.text()))
def test_plain_document_is_left_to_rfc8785(document: Any) -> None:
    """Of what JSON has words for, the normal form changes nothing."""
    assert canonical_bytes(document) == rfc8785.dumps(document)


# --- hashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", DECISIONS, ids=lambda vector: vector["json"])
def test_decided_hash(vector: dict[str, str]) -> None:
    """The digests are those of the decisions."""
    assert digest(json.loads(vector["json"])) == vector["sha256"]


def test_digest_is_sha256_of_the_form() -> None:
    """``digest`` is the lower-case hex SHA-256 of ``canonical_bytes``; None is ``null``."""
    assert digest(None) == hashlib.sha256(b"null").hexdigest()


def test_a_keyed_hash_to_the_letter() -> None:
    """HMAC-SHA256 of the same bytes (RFC 2104, by its definition), under the key's id."""
    key = Key(key_id="2026.a", secret=b"k" * 40)
    inner, outer = (bytes(byte ^ pad for byte in key.secret.ljust(64, b"\0")) for pad in (54, 92))
    first = hashlib.sha256(inner + b'{"q":"test"}').digest()
    assert digest({"q": "test"}, key) == f"hmac:2026.a:{hashlib.sha256(outer + first).hexdigest()}"
    assert digest({"q": "test"}, None) == digest({"q": "test"})


@given(plain, plain)
def test_a_keyed_hash_tells_values_and_keys_apart(one: object, other: object) -> None:
    """Two values hash alike with a key where they do without one, and never with another secret."""
    assume(all(formed(value) for value in (one, other)))
    key, another = Key(key_id="k", secret=b"k" * 32), Key(key_id="k", secret=b"l" * 32)
    assert (digest(one, key) == digest(other, key)) == (digest(one) == digest(other))
    assert digest(one, key) != digest(one, another)


def formed(value: object) -> bool:
    try:
        digest(value)
    except CanonicalizationError:
        return False
    return True


def test_a_value_without_a_form_has_no_keyed_hash_either() -> None:
    """The same error."""
    with pytest.raises(CanonicalizationError, match=r"at \$\.x"):
        digest({"x": math.nan}, Key(key_id="k", secret=b"k" * 32))


# --- one form on both ends ------------------------------------------------------------------------


@given(documents(plain | foreign, keys))
def test_same_hash_after_transport(document: Any) -> None:
    """What kombu's serializer carries has the same hash before and after."""
    assert digest(document) == digest(through_kombu(document))


@given(documents(exact | foreign, keys))
def test_form_is_the_form_of_the_wire(document: Any) -> None:
    """The form is that of the very text on the wire, where no whole number is beyond exactness."""
    wire = json.loads(kombu.utils.json.dumps(document))
    assert canonical_bytes(document) == rfc8785.dumps(wire)


@given(documents(plain, st.text()), st.randoms(use_true_random=False))
def test_key_order_is_irrelevant(document: Any, random: Any) -> None:
    """The order of keys, at any depth, is not in the form."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            pairs = [(key, shuffled(item)) for key, item in value.items()]
            random.shuffle(pairs)
            return dict(pairs)
        return [shuffled(item) for item in value] if isinstance(value, list | tuple) else value

    assert canonical_bytes(shuffled(document)) == canonical_bytes(document)


@given(documents(plain, st.text()))
def test_form_can_be_read_back(document: Any) -> None:
    """The form has in it all that the document is, so that no two documents share one."""
    read = json.loads(canonical_bytes(document), object_hook=untag, parse_int=number)
    assert identity(read) == identity(document)


few = st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 2**53, float(2**53), "", "1", "null"])


@given(documents(few, st.sampled_from("ab")), documents(few, st.sampled_from("ab")))
def test_documents_that_differ_have_forms_that_differ(one: Any, other: Any) -> None:
    """Documents that differ never share a form."""
    if identity(one) != identity(other):
        assert canonical_bytes(one) != canonical_bytes(other)


@given(st.integers(min_value=2**53), st.integers(min_value=2**53))
def test_big_whole_numbers_differ(one: int, other: int) -> None:
    """Whole numbers that no double tells apart have forms of their own, with either sign."""
    assume(one != other)
    assert len({digest(number) for number in (one, other, -one, -other)}) == 4


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**64, 10**4000])
def test_big_whole_number_is_tagged(number: int) -> None:
    """From 2^53 on a whole number is written as its digits in a tagged object."""
    tagged = {"__type__": "int", "__value__": str(number)}
    assert canonical_bytes([number]) == rfc8785.dumps([tagged])


@pytest.mark.parametrize("number", [2**53 - 1, 1 - 2**53])
def test_last_exact_whole_number_is_plain(number: int) -> None:
    """Up to 2^53 - 1 a whole number is a JSON number."""
    assert canonical_bytes(number) == str(number).encode()


class Colour(enum.IntEnum):
    RED = 7


class Word(enum.StrEnum):
    YES = "yes"


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "LOUD"


class Half(float):
    def __repr__(self) -> str:
        return "half"


Point = namedtuple("Point", "x y")


class Priced:
    """An object that puts itself into JSON."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def __json__(self) -> Any:
        return self.form


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ((1, (2,)), "[1,[2]]"),
        (Point(1, 2), "[1,2]"),
        (Colour.RED, "7"),
        (Word.YES, '"yes"'),
        (Loud("quiet"), '"quiet"'),
        (Half(0.5), "0.5"),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        ({1: "x"}, '{"1":"x"}'),
        ({None: 0, True: 1, 1.5: 2, Colour.RED: 3}, '{"1.5":2,"7":3,"null":0,"true":1}'),
        ({Loud("key"): 1, False: 2}, '{"false":2,"key":1}'),
        ({-0.0: 1}, '{"-0.0":1}'),
        ({2**60: 1}, '{"1152921504606846976":1}'),
        (Priced({"eur": (1, Decimal("2.50"))}),
         '{"eur":[1,{"__type__":"decimal","__value__":"2.50"}]}'),
        (date(2026, 1, 2), '{"__type__":"date","__value__":"2026-01-02"}'),
        (time(3, 4), '{"__type__":"time","__value__":"03:04:00"}'),
        (datetime(2026, 1, 2, tzinfo=UTC),
         '{"__type__":"datetime","__value__":"2026-01-02T00:00:00+00:00"}'),
        (uuid.UUID(int=1), f'{{"__type__":"uuid","__value__":{{"hex":"{1:032x}"}}}}'),
        ("é".encode(), '{"__type__":"bytes","__value__":"é"}'),
        (b"\xff", '{"__type__":"base64","__value__":"/w=="}'),
    ],
)  # fmt: skip
def test_value_that_json_has_no_word_for(value: object, form: str) -> None:
    """What JSON has no word for has the form that kombu's encoder puts on the wire."""
    assert canonical_bytes(value).decode() == form
    assert canonical_bytes(through_kombu(value)).decode() == form


class Money:
    """A type that its application registers with kombu."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """kombu's ``register_type``, for one test."""
    for table in ("_encoders", "_decoders"):
        monkeypatch.setattr(kombu.utils.json, table, dict(getattr(kombu.utils.json, table)))
    return kombu.utils.json.register_type


def test_registered_type(register: Callable[..., None]) -> None:
    """A type registered with kombu has the form of its tagged object, on both ends."""
    register(Money, "money", lambda money: {"cents": money.cents}, lambda form: Money(**form))
    form = canonical_bytes([Money(5)])
    assert form == b'[{"__type__":"money","__value__":{"cents":5}}]'
    assert canonical_bytes(through_kombu([Money(5)])) == form


def test_registered_type_cannot_forge_a_number(register: Callable[..., None]) -> None:
    """A type registered under the marker of the whole numbers has no form."""
    register(Money, "int", lambda money: str(money.cents), lambda form: Money(int(form)))
    with pytest.raises(CanonicalizationError, match="'int', which is taken"):
        canonical_bytes(Money(2**53))


# --- what has no form -----------------------------------------------------------------------------

tag = {"__type__": "int", "__value__": "9007199254740993"}

FORMLESS = {
    "NaN": (math.nan, "NaN"),
    "infinity": (-math.inf, "infinity"),
    "lone surrogate": (f"{SECRET}\ud800", "lone surrogate"),
    "lone surrogate in a key": ({f"{SECRET}\udfff": 1}, "lone surrogate"),
    "NaN as a key": ({math.nan: 1}, "NaN"),
    "tuple as a key": ({(SECRET,): 1}, "key of type tuple"),
    "keys that fall together": ({1: SECRET, "1": SECRET}, "one key in JSON"),
    "True and 'true'": ({True: SECRET, "true": SECRET}, "one key in JSON"),
    "forged whole number": ({"__type__": "int", "__value__": str(2**53)}, "reserved"),
    "forged tag": ({"__value__": SECRET, "__type__": SECRET}, "reserved"),
    "tag forged in __json__": (Priced({"__type__": "date", "__value__": SECRET}), "reserved"),
    "set": ({SECRET}, "type set"),
    "object": (object(), "type object"),
    "class": (Priced, "type type"),
    "complex": (1j, "type complex"),
    "very long number": (10**5000, "too many digits"),
    "very long number as a key": ({10**5000: 1}, "too many digits"),
}


def planted(fault: object, steps: list[tuple[str, int]]) -> Any:
    """A document with the fault under so many list items and keys, none of them to be shown."""
    for kind, position in reversed(steps):
        siblings: list[Any] = [SECRET] * position
        if kind == "list":
            fault = [*siblings, fault]
        else:
            fault = {f"{SECRET} {at}": at for at in range(position)} | {f"{SECRET} !": fault}
    return fault


def follow(document: Any, path: str) -> Any:
    """Where a path leads."""
    assert re.fullmatch(r"\$(\[\d+\]|\.\{key \d+\}|\.[A-Za-z_*-]+)*", path), path
    for item, position, name in re.findall(r"\[(\d+)\]|\.\{key (\d+)\}|\.([A-Za-z_*-]+)", path):
        if item:
            document = document[int(item)]
        else:
            document = document[name] if name else list(document.values())[int(position)]
    return document


steps = st.lists(st.tuples(st.sampled_from(["list", "dict"]), st.integers(0, 3)), max_size=6)


@pytest.mark.parametrize("name", FORMLESS)
@given(steps=steps)
def test_fault_is_told_by_place_and_not_by_value(name: str, steps: list[tuple[str, int]]) -> None:
    """A fault anywhere is a CanonicalizationError that has its place and no value."""
    fault, reason = FORMLESS[name]
    document = {"alert": planted(fault, steps)}
    with pytest.raises(CanonicalizationError, match=reason) as caught:
        canonical_bytes(document)
    error = caught.value
    assert error.path.startswith("$.alert")
    found = follow(document, error.path)
    # A key at fault is the last step of the path, and no step of those to its value.
    assert found is fault or found in list(fault.values())
    assert SECRET not in repr(error) + str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (math.nan, "$"),
        ([0, [math.nan]], "$[1][0]"),
        ({"a_b-C9": math.nan}, "$.a_b-C9"),
        ({"*args": [0, math.nan]}, "$.*args[1]"),
        ({"a": {"b": math.nan}}, "$.a.{key 0}"),
        ([{"a": math.nan}], "$[0].{key 0}"),
        ({"a": 1, "b c": math.nan}, "$.{key 1}"),
        ({"a\n": math.nan}, "$.{key 0}"),
        ({"a" * 64: math.nan}, f"$.{'a' * 64}"),
        ({"a" * 65: math.nan}, "$.{key 0}"),
        ({"\ud800": 1}, "$.{key 0}"),
        ({7: math.nan}, "$.{key 0}"),
        (Priced({"a": math.nan}), "$.{key 0}"),
    ],
)
def test_path(document: object, path: str) -> None:
    """Only a top-level key that is a short identifier is shown; all others are counted from 0."""
    with pytest.raises(CanonicalizationError) as caught:
        canonical_bytes(document)
    assert caught.value.path == path


def nested(levels: int, innermost: object = 0) -> Any:
    for _ in range(levels):
        innermost = [innermost]
    return innermost


def test_depth() -> None:
    """MAX_DEPTH levels have a form, one more has none; a tagged object is a level."""
    assert canonical_bytes(nested(MAX_DEPTH)) == b"[" * MAX_DEPTH + b"0" + b"]" * MAX_DEPTH
    canonical_bytes(nested(MAX_DEPTH - 1, date(2026, 1, 2)))
    for document in (
        nested(MAX_DEPTH + 1),
        nested(MAX_DEPTH, {}),
        nested(MAX_DEPTH, date(2026, 1, 2)),
        nested(100_000),
    ):
        with pytest.raises(CanonicalizationError, match=f"deeper than {MAX_DEPTH}"):
            canonical_bytes(document)


def test_depth_of_a_value_that_never_ends() -> None:
    """An object that puts itself into JSON as ever new objects has no form."""

    class Endless:
        def __json__(self) -> object:
            return Endless()

    with pytest.raises(CanonicalizationError, match="deeper"):
        canonical_bytes(Endless())


def test_cycles() -> None:
    """Lists, dicts and objects that contain themselves have no form, and that is seen at once."""
    array: list[Any] = []
    array += [array, array]
    record: dict[str, Any] = {}
    record["self"] = [record]
    priced = Priced(None)
    priced.form = {"self": priced}
    for document, path in ((array, "$[0]"), (record, "$.self[0]"), ([priced], "$[0].{key 0}")):
        with pytest.raises(CanonicalizationError, match="contains itself") as caught:
            canonical_bytes(document)
        assert caught.value.path == path


def test_the_same_value_twice_is_no_cycle() -> None:
    """A value may stand in a document more than once."""
    shared = [Priced([1])]
    assert canonical_bytes([shared, shared, {"a": shared}]) == b'[[[1]],[[1]],{"a":[[1]]}]'


def test_stack_without_room() -> None:
    """Where the stack ends before the document does, that is a CanonicalizationError, too."""

    def from_depth(frames: int) -> bytes:
        return from_depth(frames - 1) if frames else canonical_bytes(nested(MAX_DEPTH))

    room = sys.getrecursionlimit() - len(inspect.stack(0))
    with pytest.raises(CanonicalizationError):
        from_depth(room - 100)


class Own(Exception):
    """An error class of some application."""


class Raising:
    """Its conversion fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __json__(self) -> object:
        raise self.error


class BadDict(dict[Any, Any]):
    def items(self) -> Any:
        raise ValueError(SECRET)


class OddDict(dict[Any, Any]):
    def items(self) -> Any:
        return [SECRET, 7]


class BadList(list[Any]):
    def __iter__(self) -> Any:
        raise LookupError(SECRET)


@pytest.mark.parametrize(
    "value",
    [
        *(Raising(kind(SECRET)) for kind in (TypeError, ValueError, KeyError, RecursionError, Own)),
        BadDict(a=1),
        OddDict(a=1),
        BadList([1]),
    ],
    ids=lambda value: type(getattr(value, "error", value)).__name__,
)
def test_errors_of_the_value_itself(value: object) -> None:
    """Whatever a value's own code raises is a CanonicalizationError without that error's text."""
    with pytest.raises(CanonicalizationError, match="has no JSON form") as caught:
        canonical_bytes({"a": value})
    assert caught.value.path == "$.a"
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("kind", [SoftTimeLimitExceeded, MemoryError, KeyboardInterrupt])
def test_errors_that_are_none_of_the_value(kind: type[BaseException]) -> None:
    """The worker's time limit, a want of memory and an interrupt go through as they are."""
    error = kind()
    with pytest.raises(kind) as caught:
        canonical_bytes([Raising(error)])
    assert caught.value is error


# --- arguments by name ----------------------------------------------------------------------------


def one(x: int, y: int = 2) -> None: ...
def strict(a: int, /, b: int, *, c: int) -> None: ...
def surplus(x: int, *rest: int) -> None: ...
def free(x: int = 0, /, y: int = 0, **fields: int) -> None: ...
def anything(*args: int, **kwargs: int) -> None: ...


@pytest.mark.parametrize(
    ("skill", "args", "kwargs", "named"),
    [
        (one, (1,), {}, {"x": 1}),
        (one, (), {"x": 1}, {"x": 1}),
        (one, (1, 2), {}, {"x": 1, "y": 2}),
        (strict, (1, 2), {"c": 3}, {"a": 1, "b": 2, "c": 3}),
        (surplus, (1,), {}, {"x": 1}),
        (surplus, (1, 2, 3), {}, {"x": 1, "*args": [2, 3]}),
        (free, (1,), {"z": 2}, {"x": 1, "z": 2}),
        (free, (), {"fields": 1}, {"fields": 1}),
        (anything, (), {}, {}),
        (anything, (1,), {"args": 2, "kwargs": 3}, {"*args": [1], "args": 2, "kwargs": 3}),
    ],
)
def test_arguments_by_name(
    skill: Callable[..., None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    named: dict[str, object],
) -> None:
    """Arguments are named as the caller gave them: no default, ``*args`` a list, extras as keys."""
    assert arguments_by_name(inspect.signature(skill), args, kwargs) == named


def test_position_and_name_hash_alike() -> None:
    """``skill.delay(1)`` and ``skill.delay(x=1)`` have one hash, that of ``{"x": 1}``."""
    signature = inspect.signature(one)
    by_place = digest(arguments_by_name(signature, (1,), {}))
    assert by_place == digest(arguments_by_name(signature, (), {"x": 1}))
    assert by_place == "5041bf1f713df204784353e82f6a4a535931cb64f1f4b4a5aeaffcb720918b22"


@pytest.mark.parametrize(
    ("skill", "args", "kwargs", "path"),
    [
        (free, (1,), {"x": 2}, "$.x"),
        (free, (), {"x": 2}, "$.x"),
        (anything, (1,), {"*args": [1]}, "$.*args"),
        (anything, (), {"*args": [1]}, "$.*args"),
    ],
)
def test_keyword_that_reads_like_another_parameter(
    skill: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    """Two calls that differ never get one form: a keyword cannot pass for another parameter."""
    with pytest.raises(CanonicalizationError) as caught:
        arguments_by_name(inspect.signature(skill), args, kwargs)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("skill", "args", "kwargs", "text"),
    [
        (one, (), {}, "missing: x"),
        (one, (SECRET, SECRET, SECRET), {}, "3 positional where at most 2 can be"),
        (one, (SECRET,), {"x": SECRET}, "given both by position and by name: x"),
        (one, (SECRET,), {"z": SECRET}, "unexpected keywords: z"),
        (one, (SECRET,), {f"{SECRET} ": 1, "z": 1}, "unexpected keywords: z, 1 not shown"),
        (one, (SECRET,), {"z" * 65: 1}, "unexpected keywords: 1 not shown"),
        (one, (SECRET,), {f"z{n}": n for n in range(9)}, "z6, z7, 1 not shown"),
        (strict, (), {"a": SECRET}, "missing: a, b, c; unexpected keywords: a"),
        (anything, (SECRET,), {7: SECRET}, "unexpected keywords: 1 not shown"),
    ],
)
def test_arguments_that_do_not_fit(
    skill: Callable[..., None], args: tuple[Any, ...], kwargs: dict[Any, Any], text: str
) -> None:
    """Arguments that do not fit are told by names and counts, without any value."""
    with pytest.raises(SkillArgumentsError, match=f"{re.escape(text)}$") as caught:
        arguments_by_name(inspect.signature(skill), args, kwargs)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@given(
    st.sampled_from([one, strict, surplus, free, anything]),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from(["x", "y", "a", "b", "c", "z", "*args"]), st.integers()),
)
def test_arguments_fit_exactly_when_python_says_so(
    skill: Callable[..., None], args: list[int], kwargs: dict[str, int]
) -> None:
    """SkillArgumentsError, with a reason, exactly where the call itself would be a TypeError."""
    assume(skill not in (free, anything) or not {"x", "*args"} & kwargs.keys())  # lookalikes
    try:
        skill(*args, **kwargs)
    except TypeError:
        with pytest.raises(SkillArgumentsError, match=r"the skill: \w"):
            arguments_by_name(inspect.signature(skill), args, kwargs)
    else:
        arguments_by_name(inspect.signature(skill), args, kwargs)
