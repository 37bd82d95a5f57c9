"""The quick way to the canonical form: orjson writes it, after a closed check.

What is guaranteed: the bytes of :func:`quick_form` are those that ``rfc8785`` would write, or there
are none and the long way decides. It refuses nothing and lets nothing pass; it only declines.

* Only ``str``, ``int``, ``float``, ``bool``, ``None``, ``list``, ``tuple`` and ``dict`` themselves
  pass, and keys that are ``str`` itself. No code of the application runs.
* What was judged is what is written: a copy that is private, so that no other thread can put
  something else into it in between.
* Names sort alike: by code points (orjson) and by UTF-16 code units (RFC 8785, section 3.2.3) are
  one order as long as no name needs a surrogate pair.
* Numbers are spelled alike: see :func:`_real`; whole numbers beyond 2^53 - 1 are orjson's errors.
* Strings: both escape what RFC 8785, section 3.2.2.2 names, and nothing else; a lone surrogate is
  an error of orjson's.

Decision 23.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

import orjson
import rfc8785

#: How deep it looks. What is nested deeper is rare, and judged the long way; so are cycles.
MAX_ROOM: Final = 32

#: Below, Python writes an exponent, and ECMAScript not always the same one.
_LEAST_PLAIN: Final = 1e-4

#: From here on characters are surrogate pairs, which UTF-16 sorts before U+E000 to U+FFFF.
_FIRST_PAIR: Final = "\U00010000"

#: Kombu's tag, as orjson spells it. A document with this name may be one that the long way refuses.
_TAG: Final = b'"__type__"'

_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


class _UnprovenError(Exception):
    """Not to be written the quick way."""


def quick_form(value: object) -> bytes | None:
    """The RFC 8785 form of a value, in UTF-8; None where the check cannot prove it."""
    objects: list[dict[str, object]] = []
    reals: list[float] = []
    try:
        (copy,) = _array((value,), MAX_ROOM + 1, objects, reals)
        if _spelled_alike(reals):
            form = orjson.dumps(copy, option=_OPTIONS)
            if _TAG not in form and (form.isascii() or _sorted_alike(objects)):
                return form
    except (_UnprovenError, orjson.JSONEncodeError, RuntimeError):
        # RuntimeError: no room on the stack, or a dict that another thread changes meanwhile.
        pass
    return None


def _spelled_alike(reals: list[float]) -> bool:
    """Whether orjson spells each as Python does, which is what ``rfc8785`` goes by.

    Both are the shortest text that reads back as the number; here it is compared and not believed.
    NaN and the infinities are ``null`` in orjson, and so never pass.
    """
    return not reals or orjson.dumps(reals) == repr(reals).replace(" ", "").encode()


def _sorted_alike(objects: list[dict[str, object]]) -> bool:
    """Whether orjson's order of the names is RFC 8785's; asked of all at once, run together."""
    names = "".join(chain.from_iterable(objects))
    return names.isascii() or max(names) < _FIRST_PAIR


# The copy. ``room`` is how many arrays and objects may still stand inside one another. The same
# questions stand in both loops, because this is where the time goes, and a call would add to it.


def _array(
    items: Iterable[Any], room: int, objects: list[dict[str, object]], reals: list[float]
) -> list[object]:
    if not room:
        raise _UnprovenError
    copy: list[object] = []
    for item in items:
        kind = type(item)
        if kind is not str and kind is not int:
            if kind is dict:
                item = _object(item, room - 1, objects, reals)
            elif kind is list or kind is tuple:
                item = _array(item, room - 1, objects, reals)
            elif kind is float:
                item = _real(item, reals)
            elif item is not None and kind is not bool:
                raise _UnprovenError
        copy.append(item)
    return copy


def _object(
    value: dict[Any, Any], room: int, objects: list[dict[str, object]], reals: list[float]
) -> dict[str, object]:
    if not room:
        raise _UnprovenError
    copy: dict[str, object] = {}
    for name, item in value.items():
        if type(name) is not str:  # before it is a key here: that would run its __hash__
            raise _UnprovenError
        kind = type(item)
        if kind is not str and kind is not int:
            if kind is dict:
                item = _object(item, room - 1, objects, reals)
            elif kind is list or kind is tuple:
                item = _array(item, room - 1, objects, reals)
            elif kind is float:
                item = _real(item, reals)
            elif item is not None and kind is not bool:
                raise _UnprovenError
        copy[name] = item
    objects.append(copy)
    return copy


def _real(value: float, reals: list[float]) -> object:
    """A number that orjson spells as RFC 8785 does (section 3.2.2.3).

    ``rfc8785`` takes ``repr`` and changes it where it ends in ``.0`` or has an exponent. The first
    is true of whole numbers only, which are an ``int`` here (``-0.0`` is 0 in both); the second,
    below 2^53, of numbers that are smaller than :data:`_LEAST_PLAIN`, which ``rfc8785`` spells.
    All others are kept, to be compared.
    """
    if value.is_integer():
        return int(value)
    if abs(value) < _LEAST_PLAIN:
        return orjson.Fragment(rfc8785.dumps(value))
    reals.append(value)
    return value
