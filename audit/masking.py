"""Argument values out of texts: what an exception says, without what it was told.

An exception's text is written by strangers and quotes what they choked on: whole or cut short, raw,
as a ``repr``, as JSON. What is guaranteed:

* ``***`` replaces, wherever it occurs, every string of four characters and more, every number of
  four digits and more, and bytes, times, UUIDs and Decimals as they are usually printed; nested
  ones and the keys of nested mappings too. It also replaces every piece of eight characters and
  more of any of them. Neither hides behind up to three layers of escaping, nor in a URL or HTML.
* The work is linear in the size of the values, whatever they are made of, because the text is cut
  to :data:`WORKING_LENGTH` before. Neither that cut nor the last one lets a longer piece out.
* :func:`error_message` is one line of at most :data:`MAX_LENGTH` characters, without control
  characters, invisible ones, ones that turn the direction of the text, and lone surrogates. It does
  not raise, whatever an exception or an argument does when it is asked what it holds.

Decision 12.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, TypeVar
from uuid import UUID

from audit.readings import Reading, readings

#: What stands where a value was.
MASK: Final = "***"

#: How long an error message gets at most, its type included.
MAX_LENGTH: Final = 1_024

#: How much of a text is looked at; the rest is dropped.
WORKING_LENGTH: Final = 16 * 1_024

#: From this length on (of a number: from so many digits on) a whole value is masked ...
WHOLE: Final = 4

#: ... and from this length on a piece of one.
PIECE: Final = 8

# A multiple of every number up to 12, so that a value of such a period is all equal batches.
_BATCH: Final = 27_720

# What the working cut leaves too little of to be known begins within so many characters of the cut:
# seven characters, each of them a surrogate pair in JSON that was escaped twice more.
_MARGIN: Final = 128

# What is usual, some kilobytes of values and a line of text, is left to the machine's own search:
# of all pieces of the text in all values, as far as that is not more than so many steps.
_JOINED: Final = 64 * 1_024
_PRODUCT: Final = 8 * 1_024 * 1_024

# Deeper than a canonical form can be; it bounds objects that tell ever new things of themselves.
_MAX_DEPTH: Final = 256

_Found = TypeVar("_Found")

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_SERIES: Final = (list, tuple, set, frozenset, deque)

_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


class Masker:
    """Values that no text may show, prepared once for any number of texts.

    Args:
        values: they, and all that is inside them. A mapping (arguments by name) stands for its
            values: names are no secrets.
        beside: others that no text may show either.
    """

    def __init__(self, values: Iterable[object], beside: Masker | None = None) -> None:
        self._values = values
        self._beside = beside

    def mask(self, text: str) -> str:
        """The text, or the first :data:`WORKING_LENGTH` of it, :data:`MASK` for every value."""
        whole = str.__str__(text)
        seen = whole[:WORKING_LENGTH]
        kept = seen if seen == whole else seen[:-_MARGIN]
        return _covered(kept, _hidden(seen, self))

    @cached_property
    def forms(self) -> list[str]:
        """Every form, worth masking, in which the values may be printed."""
        beside = self._beside.forms if self._beside is not None else []
        return [*_forms(_given(self._values)), *beside]

    @cached_property
    def short(self) -> frozenset[str]:
        """The forms that are masked as a whole only."""
        return frozenset(form for form in self.forms if len(form) < PIECE)

    @cached_property
    def long(self) -> str | None:
        """The other forms in one text, to be searched by the machine; ``None`` if it got large."""
        long = [form for form in self.forms if len(form) >= PIECE]
        return "\x00".join(long) if sum(map(len, long)) <= _JOINED else None


def snapshot(value: object) -> object:
    """The same values in containers of their own, which nobody takes anything out of.

    For a body may: what it took out of its arguments is not less secret for that. Containers of
    the kinds that JSON makes are copied, everything else is the object itself.
    """
    kind = type(value)
    if kind is dict:
        return {key: snapshot(item) for key, item in value.items()}  # type: ignore[attr-defined]
    if kind is list or kind is tuple:
        return [snapshot(item) for item in value]  # type: ignore[attr-defined]
    return value


def mask(text: str, values: Iterable[object] | Masker) -> str:
    """As :meth:`Masker.mask`, for values that are needed once."""
    return (values if isinstance(values, Masker) else Masker(values)).mask(text)


def error_message(
    error: BaseException, values: Iterable[object] | Masker, *, type_only: bool = False
) -> str:
    """``TypeName: text`` of an error, masked and printable; ``TypeName`` where there is no text.

    Args:
        error: whatever ended an invocation.
        values: the arguments of that invocation.
        type_only: leave out the text altogether (``audit_error_message = "type"``).
    """
    text = error_text(error, values, type_only=type_only)
    message = f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__
    return _UNPRINTABLE.sub(_escaped, message)[:MAX_LENGTH]


def error_text(
    error: BaseException, values: Iterable[object] | Masker, *, type_only: bool = False
) -> str:
    """The masked text of an error, as :func:`error_message` has it before it is made one line."""
    if type_only:
        return ""
    try:
        text = str(error)
    except Exception:  # an error on the way to a message must not take the place of the error
        return "<unprintable>"
    return mask(text, values)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# The search. A character is hidden when it lies in a window of the text, as long as a piece or as a
# short value, that a value contains. A text has few windows and they are known beforehand, so that
# each step through a value costs a look into a set, however large or repetitive the value is.


def _hidden(text: str, values: Masker) -> bytearray:
    """For every character of the text, 1 where a value shows."""
    views = list(readings(text))
    found = _found(views, values)
    hidden = bytearray(len(text))
    for view in views:
        for length in {len(window) for window in found}:
            for at, window in enumerate(_windows(view, length)):
                if window in found:
                    start, end = view.starts[at], view.starts[at + length]
                    hidden[start:end] = b"\x01" * (end - start)
    return hidden


def _found(views: Sequence[Reading], values: Masker) -> set[str]:
    """The windows of a text that values show."""
    long = values.long
    if long is None or len(long) * sum(len(view.text) for view in views) > _PRODUCT:
        search = _Search(views)
        for form in values.forms:
            search.look_into(form)
        return search.found
    found = {form for form in values.short if any(form in view.text for view in views)}
    if long:
        found |= {piece for view in views for piece in _windows(view, PIECE) if piece in long}
    return found


def _windows(view: Reading, length: int) -> Iterator[str]:
    return (view.text[at : at + length] for at in range(len(view.text) - length + 1))


class _Search:
    """The windows of a text that values show; a piece's window is looked for until it is found."""

    def __init__(self, views: Iterable[Reading]) -> None:
        self.found: set[str] = set()
        self._whole = {
            length: {window for view in views for window in _windows(view, length)}
            for length in range(WHOLE, PIECE + 1)
        }
        self._pieces = self._whole.pop(PIECE)
        self._aim()

    def look_into(self, form: str) -> None:
        """Look for a value that is printed so: for itself if it is short, or for its pieces."""
        if len(form) >= PIECE:
            for batch in _batches(form):
                self._find_pieces(batch)
        elif form in self._whole[len(form)]:
            self.found.add(form)

    def _aim(self) -> None:
        """Any piece has four characters at some stride, and two more before or behind them."""
        self._aimed_at = len(self._pieces)
        self._marks = {piece[at : at + 4] for piece in self._pieces for at in range(5)}
        self._longer = {piece[at : at + 6] for piece in self._pieces for at in range(3)}

    def _find_pieces(self, batch: str) -> None:
        found = {
            context[at : at + PIECE]
            for context in self._contexts(batch)
            for at in range(len(context) - PIECE + 1)
            if context[at : at + PIECE] in self._pieces
        }
        self.found |= found
        self._pieces -= found
        if len(self._pieces) < self._aimed_at // 2:
            self._aim()

    def _contexts(self, batch: str) -> set[str]:
        """The surroundings of every place that may belong to a piece."""
        marks, longer = self._marks, self._longer
        return {
            batch[max(at - 4, 0) : at + 8]
            for at in range(0, len(batch) - 3, 5)
            if batch[at : at + 4] in marks
            and (batch[at : at + 6] in longer or batch[max(at - 2, 0) : at + 4] in longer)
        }


def _batches(form: str) -> Iterable[str]:
    """A value in parts, so that what repeats itself is looked at once."""
    if len(form) <= _BATCH:
        return (form,)
    return {form[start : start + _BATCH + PIECE - 1] for start in range(0, len(form), _BATCH)}


def _covered(text: str, hidden: bytearray) -> str:
    runs = re.finditer(rb"\x00+|\x01+", hidden[: len(text)])
    return "".join(MASK if hidden[run.start()] else text[slice(*run.span())] for run in runs)


# The values.


def _given(values: Iterable[object]) -> Iterable[object]:
    if isinstance(values, Mapping):
        return values.values()
    return [values] if isinstance(values, str | bytes) else values


def _forms(values: Iterable[object]) -> Iterator[str]:
    """Every form, worth masking, in which the values and what is inside them may be printed."""
    for value in _walk(values):
        forms = _texts(value) if type(value) is str else _safely(_printed, value)
        yield from (form for form in forms if len(form) >= WHOLE)


def _walk(values: Iterable[object]) -> Iterator[object]:
    """The values and all that is inside them, level by level, every container once."""
    met: dict[int, object] = {}  # holds what it has met, so that an id stays one object's
    level = list(values)
    for _ in range(_MAX_DEPTH):
        below: list[object] = []
        for value in level:
            if type(value) not in _SCALARS:
                if id(value) in met:
                    continue
                met[id(value)] = value
                below.extend(_safely(_inside, value))
            yield value
        level = below


def _safely(look: Callable[[Any], Iterator[_Found]], value: object) -> Iterator[_Found]:
    """What a look at a value finds, as far as it gets when the value's own code raises."""
    try:
        yield from look(value)
    except Exception:  # see error_text
        return


def _inside(value: Any) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value
        yield from value.values()
    elif isinstance(value, _SERIES):
        yield from value
    elif dataclasses.is_dataclass(value):
        yield from (getattr(value, field.name, None) for field in dataclasses.fields(value))
    elif hasattr(type(value), "model_dump"):  # pydantic's, which may print its fields differently
        yield getattr(value, "__dict__", None)
        yield value.model_dump()


def _printed(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _texts(str.__str__(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        yield from _texts(bytes(value).decode("utf-8", "replace"))
        yield from _texts(bytes(value).decode("latin-1"))  # a repr with its escapes undone
    elif isinstance(value, int | float | Decimal):
        yield from (numeral for numeral in _numerals(value) if _digits(numeral) >= WHOLE)
    elif isinstance(value, UUID):
        yield from (str(value), value.hex)
    elif isinstance(value, date | time):
        yield from (value.isoformat(), str(value))
        if isinstance(value, date):  # its repr
            yield ", ".join(str(number) for number in value.timetuple()[:6])


def _texts(text: str) -> Iterator[str]:
    """Trimmed too, where what is left would be too short for a piece."""
    yield text
    if len(trimmed := text.strip()) < min(PIECE, len(text)):
        yield trimmed


def _numerals(value: int | float | Decimal) -> Iterator[str]:
    """Without the sign, which a text may set apart."""
    if isinstance(value, int):
        yield int.__repr__(value).lstrip("-")
        yield f"{abs(int(value)):,}"
        return
    yield (float.__repr__(value) if isinstance(value, float) else str(value)).lstrip("-")
    if isinstance(value, float) and value.is_integer():
        yield str(abs(int(value)))


def _digits(numeral: str) -> int:
    return sum(map(str.isdigit, numeral))
