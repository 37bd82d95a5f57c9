"""Masking: no argument value, whole or in pieces, leaves in an error's text."""

from __future__ import annotations

import json
import random
import re
import string
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from celery.exceptions import MaxRetriesExceededError
from hypothesis import given
from hypothesis import strategies as st

from audit import masking
from audit.masking import MASK, MAX_LENGTH, PIECE, WHOLE, WORKING_LENGTH, error_message, mask

SECRET = "correct horse battery staple"
ID = uuid.UUID("12345678-9abc-4def-8123-456789abcdef")


# --- what is masked -------------------------------------------------------------------------------


def masked_by_the_rule(text: str, value: str) -> str:
    """The rule as decision 12 has it, worked out the slow way for one string without escapes."""
    hidden = [False] * len(text)
    for start in range(len(text)):
        for end in range(start + WHOLE, len(text) + 1):
            part = text[start:end]
            if part == value or (len(part) >= PIECE and part in value):
                hidden[start:end] = [True] * (end - start)
    marked = "".join("\0" if h else c for h, c in zip(hidden, text, strict=True))
    return re.sub("\0+", MASK, marked)


@given(st.text("ab", max_size=40), st.text("ab", min_size=WHOLE, max_size=60))
def test_the_rule(text: str, value: str) -> None:
    """Hidden is all that lies in the whole value or in a piece of eight characters, and no more."""
    assert mask(text, [value]) == masked_by_the_rule(text, value)


def test_the_rule_in_a_long_value() -> None:
    """Every piece of a long value is found, wherever it stands in it."""
    value = "".join(random.Random(0).choices(string.ascii_letters, k=30_000))
    pieces = [value[start : start + PIECE] for start in range(len(value) - PIECE + 1)]
    for start in range(0, len(pieces), 1_000):
        some = pieces[start : start + 1_000]
        assert mask("|".join(some), [value]) == "|".join([MASK] * len(some))


@pytest.mark.parametrize(
    ("value", "text", "masked"),
    [
        ("hunter2", "no hunter2, no hunter22", "no ***, no ***2"),
        ("abc", "abc stays", "abc stays"),
        ("abcd", "abcd goes", "*** goes"),
        ("abcdefg", "abcdef is a short piece", "abcdef is a short piece"),
        ("hunter2\n", "no hunter2", "no ***"),
        (SECRET, "bad: 'correct h...staple'", "bad: '***...staple'"),
        (SECRET, "bad: ...y staple", "bad: ...***"),
        (1234, "no 1234", "no ***"),
        (-1234, "no -1234 and no 1234", "no -*** and no ***"),
        (123, "123 stays", "123 stays"),
        (3.14159, "no 3.14159", "no ***"),
        (1e-05, "1e-05 stays", "1e-05 stays"),
        (1234.0, "no 1234.0 and no 1234", "no *** and no ***"),
        (True, "True stays", "True stays"),
        (None, "None stays", "None stays"),
        (Decimal("-12.50"), "no -12.50", "no -***"),
        (Decimal("12.5"), "12.5 stays", "12.5 stays"),
        (b"hunter2", "no hunter2", "no ***"),
        (b"\xff\x00hunter", r"no b'\xff\x00hunter'", "no b'***'"),
        ("é€".encode(), "no é€", "no é€"),
        ("née €".encode(), r"née €, b'n\xc3\xa9e \xe2\x82\xac'", "***, b'***'"),
        (bytearray(b"hunter2"), "no hunter2", "no ***"),
        (date(2026, 1, 2), "2026-01-02, datetime.date(2026, 1, 2)", "***, datetime.date(***)"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "no 2026-01-02 03:04:05", "no ***"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "no 2026-01-02T03:04:05Z", "no ***Z"),
        (time(3, 4, 5), "no 03:04:05", "no ***"),
        (ID, f"no {ID}, no {ID.hex}, {ID!r}", "no ***, no ***, UUID('***')"),
    ],
)  # fmt: skip
def test_leaf(value: object, text: str, masked: str) -> None:
    """Every kind of value is masked in the forms in which it is usually printed."""
    assert mask(text, [value]) == masked


@dataclass
class Record:
    field: object


@dataclass(slots=True)
class Slotted:
    field: object


class Model:
    """What pydantic's models look like from here: fields, and another view of them."""

    def __init__(self, field: object) -> None:
        self.field = field

    def model_dump(self) -> dict[str, object]:
        return {"field": "*" if isinstance(self.field, str) else bytes(self.field).decode()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda v: [v],
        lambda v: (v,),
        lambda v: {v},
        lambda v: frozenset({v}),
        lambda v: deque([v]),
        lambda v: {"key": v},
        lambda v: {v: "value"},
        lambda v: {"a": [{"b": (v,)}]},
        lambda v: MappingProxyType({"key": v}),
        Record,
        Slotted,
        Model,
        lambda v: Model(list(v.encode())),
        lambda v: [Record({"a": Model([v])})],
    ],
)
def test_nested(wrap: Callable[[str], object]) -> None:
    """Values are found in whatever holds them, keys of mappings too."""
    assert mask(f"no {SECRET}", [wrap(SECRET)]) == "no ***"


@pytest.mark.parametrize("values", [[SECRET], (SECRET,), {"query": SECRET}, SECRET, iter([SECRET])])
def test_values_as_they_come(values: Any) -> None:
    """Values come in any iterable; arguments by name stand for their values, not for the names."""
    assert mask(f"query {SECRET}", values) == "query ***"


def test_one_mask_for_all_that_touch() -> None:
    """Values that touch or overlap leave one mask, which does not tell where one ends."""
    assert mask("<hunter2hunter3>", ["hunter2", "hunter3"]) == "<***>"


def test_nothing_to_mask() -> None:
    """A text without values stays as it is."""
    assert mask(r"C:\temp\new \ud800 \U99999999", ["something else"]) == (
        r"C:\temp\new \ud800 \U99999999"
    )


secrets = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="<>*"), min_size=PIECE
)


def ascii_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def plain_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def quoted(text: str) -> str:
    return repr(text)[1:-1]


def ascii_quoted(text: str) -> str:
    return ascii(text)[1:-1]


quotings = st.lists(st.sampled_from([ascii_json, plain_json, quoted, ascii_quoted]), max_size=3)


@given(secrets, quotings)
def test_escapes_hide_nothing(secret: str, quotings: list[Callable[[str], str]]) -> None:
    """A value is found through up to three layers of repr and JSON, in any order."""
    echo = secret
    for quoting in quotings:
        echo = quoting(echo)
    assert mask(f"<{echo}>", [secret]) == "<***>"


def cut_short(value: object) -> str:
    """As Pydantic echoes what it refuses: the two ends of its repr, 50 characters in all."""
    told = repr(value)
    return told if len(told) <= 50 else f"{told[:25]}...{told[-24:]}"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text,
        lambda text: [text, text],
        lambda text: {text: 1},
        lambda text: {"document": [{"n": text}]},
        lambda text: json.dumps({"n": text}),
        lambda text: text.encode(),
    ],
)
@given(secret=st.text(st.characters(exclude_categories=("Cs",)), min_size=30, max_size=90))
def test_an_echo_that_is_cut_short(wrap: Callable[[str], object], secret: str) -> None:
    """Neither of its ends leaves a piece of eight characters."""
    value = wrap(secret)
    text = f"1 validation error\nname\n  [type=int_parsing, input_value={cut_short(value)}, input]"
    masked = mask(text, [value])
    assert not any(secret[at : at + PIECE] in masked for at in range(len(secret) - PIECE + 1))
    assert masked.startswith("1 validation error\nname\n  [type=int_parsing, input_value=")


def test_celerys_own_text_of_all_arguments() -> None:
    """MaxRetriesExceededError quotes them as they were given, by place and by name."""
    given_args, given_kwargs = (SECRET, 471100, [b"bytes-of-mine"]), {"x": {SECRET: ID}}
    error = MaxRetriesExceededError(
        f"Can't retry obs.triage[{uuid.uuid4()}] args:{given_args} kwargs:{given_kwargs}"
    )
    message = error_message(error, [given_args, list(given_kwargs.values())])
    assert message.endswith("args:('***', ***, [b'***']) kwargs:{'x': {'***': UUID('***')}}")
    assert message.startswith("MaxRetriesExceededError: Can't retry obs.triage[")


def test_value_with_backslashes_of_its_own() -> None:
    """A value with backslashes is found as it is and escaped."""
    path = r"C:\new\table"
    assert mask(f"no {path}, no {path!r}", [path]) == "no ***, no '***'"


# --- how much is looked at ------------------------------------------------------------------------


@pytest.mark.parametrize("quoting", [str, ascii_json, lambda t: ascii_json(ascii_json(t))])
@pytest.mark.parametrize("secret", ["0123456", "0123456789", "\U0001f600" * 9])
def test_no_leak_at_the_working_cut(quoting: Callable[[str], str], secret: str) -> None:
    """Wherever the working cut meets a value, nothing of the value stays before it."""
    echo = quoting(secret)
    for room in range(0, len(echo) + 8, len(echo) // 50 + 1):
        text = "x" * (WORKING_LENGTH - room) + echo + "y" * WORKING_LENGTH
        assert set(mask(text, [secret])) <= {"x", "*", "y"}


def test_text_up_to_the_working_length_is_whole() -> None:
    """A text of the working length loses nothing, a longer one is cut."""
    assert mask("x" * WORKING_LENGTH, []) == "x" * WORKING_LENGTH
    assert len(mask("x" * (WORKING_LENGTH + 1), [])) < WORKING_LENGTH


@pytest.mark.parametrize("period", ["a", "ab", "abcdefg", SECRET])
def test_very_large_value(period: str) -> None:
    """A large repetitive value, echoed in a large text, is masked whole."""
    value = period * (3_000_000 // len(period))
    assert error_message(ValueError(f"<{value}>"), [value]) == "ValueError: <***"
    assert mask("<" + "a-" * 6_000 + ">", [value]) == "<" + "a-" * 6_000 + ">"


class Counted(set[str]):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, part: object) -> bool:
        Counted.asked += 1
        return super().__contains__(part)


@pytest.mark.parametrize("alphabet", ["a", "ab", "abcd", string.ascii_letters])
def test_the_work_is_linear_in_the_size_of_a_value(
    alphabet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in steps, and not by a clock: ten times the value is at most ten times the work, and
    10 MB of it less than a look a character, however much of it the text repeats."""
    aim, contexts = masking._Search._aim, masking._Search._contexts

    def counting(search: Any) -> None:
        aim(search)
        search._marks, search._longer = Counted(search._marks), Counted(search._longer)

    def counted(search: Any, batch: str) -> Any:
        found = contexts(search, batch)
        Counted.asked += PIECE * len(found)
        return found

    monkeypatch.setattr(masking._Search, "_aim", counting)
    monkeypatch.setattr(masking._Search, "_contexts", counted)
    chosen = random.Random(0)
    text = "".join(chosen.choices(alphabet, k=WORKING_LENGTH))
    value = "".join(chosen.choices(alphabet, k=10_000_000))
    steps = []
    for size in (1_000_000, 10_000_000):
        Counted.asked = 0
        mask(text, [value[:size]])
        steps.append(Counted.asked)
    assert steps[1] <= 10.1 * steps[0]
    assert steps[1] <= len(value)


def test_containers_without_end() -> None:
    """Cycles, values shared a million million times and very deep ones are walked once."""
    cycle: list[Any] = [SECRET]
    cycle.append(cycle)
    shared: list[Any] = [SECRET]
    for _ in range(100):
        shared = [shared, shared]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert mask(f"no {SECRET}", [deep, cycle]) == "no ***"
    assert mask(f"no {SECRET}", [deep, shared]) == "no ***"


def test_object_that_tells_ever_new_things() -> None:
    """An object that always dumps itself as a new object is given up on."""

    class Endless:
        def model_dump(self) -> object:
            return Endless()

    assert mask(f"no {SECRET}", [Endless(), SECRET]) == "no ***"


class Hostile:
    """Whatever is asked of it raises."""

    def __init__(self) -> None:
        self.field = SECRET

    def model_dump(self) -> object:
        raise RuntimeError(SECRET)

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


class HostileList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError


def test_values_that_raise() -> None:
    """A value whose code raises is masked as far as it lets itself be seen, and nothing raises."""
    hostile = [HostileList([1]), Hostile(), 10**5000, time]
    assert error_message(KeyError(SECRET), hostile) == "KeyError: '***'"


# --- the message ----------------------------------------------------------------------------------


class TestError(Exception):
    __test__ = False


class UntellableError(Exception):
    def __str__(self) -> str:
        raise ValueError(SECRET)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TestError("no luck"), "TestError: no luck"),
        (TestError(), "TestError"),
        (TestError(SECRET), "TestError: ***"),
        (KeyError(SECRET), "KeyError: '***'"),
        (UntellableError(), "UntellableError: <unprintable>"),
        (SystemExit(3), "SystemExit: 3"),
        (TestError("a\tb\r\nc\x7f\x85\xad"), r"TestError: a\x09b\x0d\x0ac\x7f\x85\xad"),
        (TestError("\u2028\u2029\u202e\u2066\ufeff"), r"TestError: \u2028\u2029\u202e\u2066\ufeff"),
        (TestError("\ud800 \U000e0041"), r"TestError: \ud800 \U000e0041"),
        (TestError("née 漢字 😀"), "TestError: née 漢字 😀"),
    ],
)
def test_message(error: BaseException, message: str) -> None:
    """The message is the type and the masked, printable text; the type alone without a text."""
    assert error_message(error, [SECRET]) == message


def test_type_is_not_masked() -> None:
    """The type's name stays, even where an argument reads the same."""
    assert error_message(ValueError("ValueError"), ["ValueError"]) == "ValueError: ***"


def test_type_only() -> None:
    """With ``type_only`` the text is not even asked for."""
    assert error_message(UntellableError(), [SECRET], type_only=True) == "UntellableError"


def test_nested_type_by_its_qualified_name() -> None:
    """A class inside another is told by its qualified name."""

    class Inner(Exception):
        pass

    name = f"{test_nested_type_by_its_qualified_name.__name__}.<locals>.Inner"
    assert error_message(Inner("x"), []) == f"{name}: x"


@given(st.text(st.characters(), max_size=3_000), st.lists(st.text(min_size=WHOLE), max_size=4))
def test_message_is_short_and_printable(text: str, values: list[str]) -> None:
    """Any text makes one line of at most 1,024 characters that any log and store can take."""
    message = error_message(TestError(text), values)
    assert len(message) <= MAX_LENGTH
    assert len(message.splitlines()) == 1
    assert message.encode()
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e]", message)


def test_length_with_escapes() -> None:
    """Escapes count: the limit holds for what comes out."""
    assert len(error_message(TestError("\n" * 1_000), [])) == MAX_LENGTH


@given(st.text("abcdefgh", min_size=WHOLE, max_size=2_000), st.integers(0, 1_100))
def test_no_leak_at_the_last_cut(secret: str, room: int) -> None:
    """The cut to 1,024 characters comes after masking, so that it cuts no value in two."""
    message = error_message(TestError("x" * room + secret), [secret])
    assert set(message.removeprefix("TestError: ")) <= {"x", "*"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("GET /find?who=anna%20b%C3%B6hm%2Bco&page=2", "GET /find?who=***&page=2"),
        ("GET /find?who=anna+b%C3%B6hm%2Bco&page=2", "GET /find?who=***&page=2"),
        ("<td>anna b&ouml;hm&#43;co</td>", "<td>***</td>"),
        ("<td>anna b&#xF6;hm+co</td>", "<td>***</td>"),
        ("owes 1,234,567 in all", "owes *** in all"),
        ("100% & more; 5%zz &nosuch; %C3%28", "100% & more; 5%zz &nosuch; %C3%28"),
    ],
)
def test_a_value_in_a_url_in_html_or_with_commas(text: str, told: str) -> None:
    """As other libraries spell it; what only looks like an escape is text."""
    assert mask(text, ["anna b\u00f6hm+co", 1234567]) == told
