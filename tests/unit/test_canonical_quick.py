"""The quick way to the canonical form: the long way's bytes, or none.

``CANONICAL_DOCUMENTS=100000`` sets how many documents the properties are tried on.
"""

from __future__ import annotations

import enum
import inspect
import math
import os
import sys
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from audit import canonical_quick
from audit.canonical import MAX_DEPTH, canonical_bytes, judged_form
from audit.canonical_quick import MAX_ROOM, quick_form
from audit.errors import CanonicalizationError

DOCUMENTS = int(os.environ.get("CANONICAL_DOCUMENTS", "500"))

many = settings(
    max_examples=DOCUMENTS, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
pytestmark = pytest.mark.timeout(120 + DOCUMENTS // 20)


# --- values that look like JSON and are none ------------------------------------------------------


class Loud(str):
    """A string whose own word differs from its text."""

    def __str__(self) -> str:
        return "LOUD"


class Half(float):
    """A float that is no ``float`` itself."""


class Count(int):
    """A whole number that is no ``int`` itself."""


class Row(list[Any]):
    """A list that is no ``list`` itself."""


class Colour(enum.IntEnum):
    RED = 7


class Word(enum.StrEnum):
    YES = "yes"


class Odd(enum.Enum):
    ONE = 1


class Mark(bytes, enum.Enum):
    """As in Python's documentation: bytes by type, a number by value."""

    def __new__(cls, value: int) -> Mark:
        mark = bytes.__new__(cls, [value])
        mark._value_ = value
        return mark

    def __repr__(self) -> str:
        return "Mark.A"

    A = 65


class Priced:
    def __json__(self) -> Any:
        return {"eur": 1}


@dataclass(frozen=True)
class Place:
    city: str


Point = namedtuple("Point", "x y")

LOOKALIKES: list[Any] = [
    Loud("quiet"), Half(0.5), Half(2.0), Count(5), Row([1]), OrderedDict(b=1, a=2), Point(1, 2),
    Colour.RED, Word.YES, Odd.ONE, Mark.A, Priced(), Place("Ulm"),
    uuid.UUID(int=1), Decimal("1.50"), date(2026, 1, 2), time(3, 4),
    datetime(2026, 1, 2, tzinfo=UTC),
    b"x", bytearray(b"x"), memoryview(b"x"), {1}, frozenset(), 1j, ..., object(), Priced, len,
    orjson.Fragment(b"[null"), math.nan, math.inf, -math.inf,
]  # fmt: skip

# --- what Hypothesis draws ------------------------------------------------------------------------

BOUNDARIES = [2**31, 2**32, 2**52, 2**53, 2**63, 2**64, 10**16, 10**21, 10**400]
EDGES = [
    5e-324, 2.2250738585072014e-308, 1e-10, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 1.0, 123.456,
    2.0**44 + 0.5**8, 2.0**50 + 0.25, 2.0**50 + 0.75, 2.0**52 - 0.5, 2.0**53, 1e15, 1e16, 1e20,
    333333333.3333333, 1e21, 1e22, 1e23, 1e100, 1.7976931348623157e308,
]  # fmt: skip
STRANGE = (
    '"\\/\b\f\n\r\t\0\x1b\x1f\x7f\x80é\u2028\ud7ff\ue000\uff21\uffff\U00010000\U0001f600\U0010ffff'
)

whole = st.integers() | st.builds(
    lambda edge, off, sign: sign * (edge + off),
    st.sampled_from(BOUNDARIES), st.integers(-2, 2), st.sampled_from([1, -1]),
)  # fmt: skip
exact = whole.filter(lambda number: abs(number) < 2**53)
edges = st.builds(
    lambda edge, way, sign: sign * (math.nextafter(edge, way) if way is not None else edge),
    st.sampled_from(EDGES), st.sampled_from([None, 0.0, math.inf]), st.sampled_from([1, -1]),
)  # fmt: skip
short = st.builds(
    lambda digits, at: digits / 10**at, st.integers(-(10**9), 10**9), st.integers(0, 9)
)
real = st.floats() | edges | short
finite = real.filter(math.isfinite)
strange = st.text(st.sampled_from(STRANGE) | st.characters(codec="utf-8"), max_size=8)
broken = st.text(st.sampled_from([*STRANGE, "\ud800", "\udbff", "\udc00", "\udfff"]), max_size=4)
names = st.text(max_size=8) | strange
#: On both sides of where UTF-16 sorts otherwise than code points do.
clashing = st.text(st.sampled_from("a\ud7ff\ue000\uff21\U00010000"), min_size=1, max_size=2)
transport = st.sampled_from(["__type__", "__value__"])
wild_names = (
    names | broken | transport | whole | real | st.none() | st.booleans()
    | st.sampled_from([Loud("a"), Loud("__type__"), Word.YES, Colour.RED, uuid.UUID(int=2), (1,)])
)  # fmt: skip


def documents(leaves: st.SearchStrategy[Any], names: st.SearchStrategy[Any]) -> Any:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(names, inner, max_size=4)
        ),
        max_leaves=12,
    )


def wrapped(document: Any, depth: int, name: str | None) -> Any:
    for _ in range(depth):
        document = [document] if name is None else {name: document}
    return document


scalars = st.none() | st.booleans() | exact | names
plain = documents(
    scalars | st.floats(-1e15, 1e15) | short,
    st.text(st.characters(max_codepoint=0xFFFF, codec="utf-8")),
)
wild = documents(scalars | whole | real | broken | st.sampled_from(LOOKALIKES), wild_names)
deep = st.builds(
    wrapped,
    documents(scalars, names),
    st.integers(MAX_ROOM - 4, MAX_ROOM + 4) | st.integers(MAX_DEPTH - 4, MAX_DEPTH + 4),
    st.sampled_from([None, "a"]),
)
#: Some of each fault alone, so that it is met in documents that have no other.
anything = st.one_of(
    plain,
    documents(scalars | whole, names),
    documents(real, names),
    documents(scalars, clashing),
    documents(scalars, transport),
    documents(scalars | broken, names | broken),
    documents(scalars, wild_names),
    documents(scalars | st.sampled_from(LOOKALIKES), names),
    wild,
    deep,
)


# --- one form -------------------------------------------------------------------------------------


@many
@given(anything)
def test_the_long_ways_bytes_or_none(document: Any) -> None:
    """The quick form is that of the long way, which refuses nothing that has a quick form."""
    form = quick_form(document)
    assert form is None or form == judged_form(document)


@settings(many, max_examples=DOCUMENTS // 4)
@given(plain)
def test_plain_documents_are_not_declined(document: Any) -> None:
    """What agents send has a quick form: else all of this would be for nothing."""
    form = judged_form(document)
    assume(b'"__type__"' not in form)  # Hypothesis reads the source for texts to try
    assert quick_form(document) == form


@settings(many, max_examples=DOCUMENTS // 20)
@given(st.lists(finite, min_size=50, max_size=200))
def test_numbers(numbers: list[float]) -> None:
    """Every number is spelled as RFC 8785 has it; only whole ones beyond 2^53 - 1 are declined."""
    numbers = [number for number in numbers if abs(number) < 2**53 or not number.is_integer()]
    assert quick_form(numbers) == judged_form(numbers)


@pytest.mark.parametrize("value", LOOKALIKES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "around", [lambda x: x, lambda x: [x], lambda x: {"a": x}, lambda x: (1, x)]
)
def test_lookalikes_are_declined(value: Any, around: Callable[[Any], Any]) -> None:
    """Whatever is no ``str``, ``int``, finite ``float``, ``bool``, ``None`` itself is declined."""
    assert quick_form(around(value)) is None


@pytest.mark.parametrize(
    ("document", "is_quick"),
    [
        ({"\uffff": 1, "\ue000": 2}, True),
        ({"\U00010000": 1, "a": 2}, False),
        ({"\U00010000": 1, "\uff21": 2}, False),
        ({"é": "\U0001f600\uff21"}, True),
        ({"__type__": 1}, False),
        ({"__type__": "int", "__value__": "9007199254740993"}, False),
        ({"__value__": 1}, True),
        (2**53 - 1, True),
        (-(2**53), False),
        (2.0**53 - 1, True),
        (2.0**53, False),
        (-0.0, True),
        ([1e-4, 9e-5, 1e-7, 5e-324, 0.1 + 0.2], True),
        ("\ud800", False),
        ({1: 2}, False),
        (wrapped(0, MAX_ROOM, None), True),
        (wrapped(0, MAX_ROOM + 1, None), False),
        (wrapped(0, MAX_ROOM + 1, "a"), False),
        ((), True),
        ({}, True),
    ],
)
def test_what_is_quick(document: object, is_quick: bool) -> None:
    """Where the check stands: the last document that passes, and the first that does not."""
    form = quick_form(document)
    assert (form is not None) == is_quick
    assert form in (None, judged_form_of(document))


def judged_form_of(document: object) -> bytes | None:
    try:
        return judged_form(document)
    except CanonicalizationError:
        return None


# --- the check itself -----------------------------------------------------------------------------


def test_what_was_judged_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that another thread changes after the check has the form that was checked."""
    inner, array = {"b": 1}, [1]
    document = {"a": inner, "c": array}

    def changed_meanwhile(reals: list[float]) -> bool:
        document["d"], inner["b"], array[0] = uuid.UUID(int=1), math.nan, Colour.RED
        return True

    monkeypatch.setattr(canonical_quick, "_spelled_alike", changed_meanwhile)
    assert quick_form(document) == b'{"a":{"b":1},"c":[1]}'


@pytest.mark.parametrize("spelled", ["0.30000000000000005", "0.3", "3e-1", "null", "0.1,0.2"])
def test_numbers_are_compared_and_not_believed(
    monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    """Were orjson to spell a number in its own way, it would be declined."""
    write = orjson.dumps

    def otherwise(value: Any, **options: Any) -> bytes:
        return write(value, **options).replace(b"0.30000000000000004", spelled.encode())

    monkeypatch.setattr(orjson, "dumps", otherwise)
    assert quick_form([0.1 + 0.2]) is None
    assert canonical_bytes([0.1 + 0.2]) == b"[0.30000000000000004]"


class Trap(str):
    """A key that tells when a dict asks it anything."""

    armed = False

    def __hash__(self) -> int:
        assert not self.armed
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        assert not self.armed
        return str.__eq__(self, other)


def test_no_code_of_a_key_runs() -> None:
    """A key of another type is declined before it is asked for its hash."""
    document = {"a": [1], Trap("b"): [1]}
    Trap.armed = True
    assert quick_form(document) is None
    assert canonical_bytes(document) == b'{"a":[1],"b":[1]}'
    Trap.armed = False


def test_cycles_and_doubling_end_at_once() -> None:
    """What contains itself, and what doubles at each of more levels than it looks, is declined."""
    array: list[Any] = []
    array += [array, array]
    record: dict[str, Any] = {}
    record |= {"a": record, "b": record}
    doubled: Any = 0
    for _ in range(2 * MAX_DEPTH):
        doubled = [doubled, doubled]
    for document in (array, record, doubled):
        assert quick_form(document) is None


def test_dict_that_changes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dict that grows under the loop over it is declined; the long way copies it first."""
    document: dict[str, Any] = {"a": 0.5, "b": 1}

    def grow(value: float, *_: object) -> float:
        document["c"] = 2
        return value

    monkeypatch.setattr(canonical_quick, "_real", grow)
    assert quick_form(document) is None
    assert canonical_bytes(document) == b'{"a":0.5,"b":1,"c":2}'


def test_stack_without_room() -> None:
    """Where the stack has no room for it, the quick way declines, and the long way says so."""

    def from_depth(frames: int) -> bytes | None:
        return from_depth(frames - 1) if frames else quick_form(wrapped(0, MAX_ROOM, None))

    room = sys.getrecursionlimit() - len(inspect.stack(0))
    assert from_depth(room - 20) is None
    assert from_depth(room - 3 * MAX_ROOM) is not None
