"""The canonical form of arguments and results, and its hash.

The form is RFC 8785 (JSON Canonicalization Scheme), written by the ``rfc8785`` package from a
*normal form* that is made here first, or, for what needs no judgement, to the same bytes by
:mod:`audit.canonical_quick`. What is guaranteed:

* One form on both ends. A value has the same form before and after its way through Celery's JSON
  serializer: tuples are lists, keys are strings, and whatever JSON has no word for (datetime,
  UUID, Decimal, bytes, ``__json__``, a type registered with kombu) is the object that kombu's
  encoder writes. A registered type must therefore name a decoder that undoes its encoder.
* No two values share a form unless JSON makes them one, too: ``1`` and ``1.0``, ``0.0`` and
  ``-0.0`` (RFC 8785, section 3.2.2.3), and what transport makes equal. A whole number beyond
  +-(2^53 - 1), which IEEE 754 may not hold (RFC 7493, section 2.2), is written as
  ``{"__type__": "int", "__value__": "<decimal digits>"}``, and no caller can forge such an object.
* All else is a :class:`~audit.errors.CanonicalizationError`: NaN and infinities, lone surrogates,
  cycles, nesting beyond :data:`MAX_DEPTH`, keys that fall together, types without a JSON form. It
  tells the place and never the value. The path shows a top-level key, a parameter's name, where
  that is a short identifier; any other key may be a secret and is shown by its position, counted
  from 0 like the items of lists: ``$.alert.{key 2}[3]``.

Decisions 6 to 9 and 23.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from math import isfinite
from typing import Any, Final, TypeAlias

import rfc8785
from kombu.utils.json import JSONEncoder

from audit.canonical_quick import quick_form
from audit.errors import CanonicalizationError, SkillArgumentsError
from audit.keys import Key

#: How many arrays and objects may stand inside one another.
MAX_DEPTH: Final = 128

#: How a hash begins that was made with a key.
KEYED: Final = "hmac"

#: The key of the surplus positional arguments, whatever the skill itself calls its ``*args``.
SURPLUS_KEY: Final = "*args"

_Json: TypeAlias = "bool | int | float | str | list[_Json] | dict[str, _Json] | None"

_MAX_EXACT_INT: Final = 2**53 - 1
_BIG_INT: Final = "int"
_TAG: Final = frozenset({"__type__", "__value__"})
_SHOWABLE: Final = re.compile(r"\*args|[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NAMES_TOLD: Final = 8
_ENCODER: Final = JSONEncoder()


class _NoFormError(Exception):
    """No canonical form, here inside; each container that it leaves adds its step of the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


def canonical_bytes(value: object) -> bytes:
    """The RFC 8785 form of a value, in UTF-8.

    Raises:
        CanonicalizationError: the value has none; the error says where and why.
    """
    form = quick_form(value)
    return judged_form(value) if form is None else form


def judged_form(value: object) -> bytes:
    """:func:`canonical_bytes` the long way, which judges everything that the quick one declines."""
    try:
        return rfc8785.dumps(_normal(value, set()))
    except _NoFormError as error:
        fault = error
    except (rfc8785.CanonicalizationError, RecursionError):
        fault = _NoFormError("RFC 8785 refuses it, or the stack has no room left for its nesting")
    # Out here, because inside a handler the error of the library, whose text quotes the value,
    # would hang on to this one as its __context__.
    raise CanonicalizationError("$" + "".join(reversed(fault.steps)), fault.reason)


def digest(value: object, key: Key | None = None) -> str:
    """The hash of a value's canonical form.

    SHA-256, as 64 lower-case hex digits; with a key HMAC-SHA256, as ``hmac:<key id>:<hex digits>``.

    Raises:
        CanonicalizationError: the value has no canonical form.
    """
    form = canonical_bytes(value)
    if key is None:
        return hashlib.sha256(form).hexdigest()
    return f"{KEYED}:{key.key_id}:{hmac.digest(key.secret, form, 'sha256').hex()}"


def arguments_by_name(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, object]:
    """The arguments of a call as ``{parameter: value}``, as the caller gave them (decision 6).

    No default is filled in. Surplus positional arguments are a list under ``*args``, and each entry
    of ``**kwargs`` stands as a key of its own.

    Raises:
        SkillArgumentsError: the arguments do not fit; the text has names and counts, no values.
        CanonicalizationError: a keyword reads like another parameter, so that two calls that differ
            would have one form.
    """
    _refuse_lookalikes(signature, kwargs)
    named = _bind(signature, args, kwargs)
    if named is None:
        misfits = "; ".join(_misfits(signature, args, kwargs))
        raise SkillArgumentsError(f"the arguments do not fit the skill: {misfits}")
    for name in _names(signature, Parameter.VAR_POSITIONAL):
        if name in named:
            named[SURPLUS_KEY] = list(named.pop(name))
    for name in _names(signature, Parameter.VAR_KEYWORD):
        named.update(named.pop(name, {}))
    return named


# Normal form. ``trail`` holds the ids of the containers around a value: its size is the depth, and
# a container that is met again while on it contains itself. Every function takes it, so that the
# table at the end can name any of them; exact types come first there because almost all are.


def _normal(value: object, trail: set[int]) -> _Json:
    return _NORMALISERS.get(type(value), _of_another_type)(value, trail)


def _literal(value: bool | None, trail: set[int]) -> _Json:
    return value


def _text(value: str, trail: set[int]) -> str:
    if not value.isascii():
        _require_unicode(value)
    return value


def _require_unicode(text: str) -> None:
    """RFC 8785, section 3.2.2.2: a lone surrogate must be an error."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _NoFormError("a lone surrogate") from None


def _whole(value: int, trail: set[int]) -> _Json:
    if -_MAX_EXACT_INT <= value <= _MAX_EXACT_INT:
        return value
    return {"__type__": _BIG_INT, "__value__": _digits(value)}


def _digits(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # the interpreter's limit, which stops kombu as well
        raise _NoFormError("a whole number of too many digits") from None


def _real(value: float, trail: set[int]) -> float:
    if not isfinite(value):
        raise _NoFormError("NaN or an infinity")
    return value


def _array(value: Sequence[object], trail: set[int]) -> _Json:
    return _elements(value, value, trail)


def _elements(container: object, items: Iterable[object], trail: set[int]) -> _Json:
    _enter(container, trail)
    form: list[_Json] = []
    try:
        for item in items:
            form.append(_NORMALISERS.get(type(item), _of_another_type)(item, trail))
    except _NoFormError as error:
        error.steps.append(f"[{len(form)}]")
        raise
    trail.remove(id(container))
    return form


def _object(value: dict[object, object], trail: set[int]) -> _Json:
    # Copied in one step, so that another thread's new key cannot break the loop over it.
    return _members(value, list(value.items()), trail)


def _members(container: object, pairs: list[tuple[object, object]], trail: set[int]) -> _Json:
    at_top = not trail
    _enter(container, trail)
    form: dict[str, _Json] = {}
    try:
        for key, item in pairs:
            name = key if type(key) is str and key.isascii() else _name(key, trail)
            if name in form:
                raise _NoFormError("two keys that are one key in JSON")
            form[name] = _NORMALISERS.get(type(item), _of_another_type)(item, trail)
    except _NoFormError as error:
        error.steps.append(_step(len(form), pairs[len(form)][0] if at_top else None))
        raise
    if len(form) == len(_TAG) and form.keys() == _TAG:  # kombu would make something else of it
        raise _NoFormError("the keys __type__ and __value__ alone are reserved for the transport")
    trail.remove(id(container))
    return form


def _step(position: int, key: object) -> str:
    shown = type(key) is str and _SHOWABLE.fullmatch(key)
    return f".{key}" if shown else f".{{key {position}}}"


def _name(key: Any, trail: set[int]) -> str:
    """The string that a key becomes in JSON; the order of the questions is json.dumps's."""
    kind = type(key)
    if issubclass(kind, str):
        return _text(str.__str__(key), trail)
    if issubclass(kind, float):
        return float.__repr__(_real(key, trail))
    if key is None or kind is bool:
        return "null" if key is None else str(key).lower()
    if issubclass(kind, int):
        return _digits(key)
    raise _NoFormError(f"a key of type {kind.__qualname__}, of which JSON makes no string")


def _of_another_type(value: Any, trail: set[int]) -> _Json:
    """A subclass is what its base is (enums too), as json.dumps has it; the rest is kombu's."""
    kind = type(value)
    if issubclass(kind, str):
        return _text(str.__str__(value), trail)
    if issubclass(kind, int):
        return _whole(int.__int__(value), trail)
    if issubclass(kind, float):
        return _real(float.__float__(value), trail)
    if issubclass(kind, list | tuple):
        return _elements(value, _ask(value, list), trail)
    if issubclass(kind, dict):
        return _members(value, _ask(value, _pairs), trail)
    return _on_the_wire(value, trail)


def _on_the_wire(value: object, trail: set[int]) -> _Json:
    """What kombu's encoder writes for a value, in normal form in its turn (decision 7)."""
    _enter(value, trail)
    written, by_itself = _ask(value, _encoded)
    if not by_itself and type(written) is dict and written.keys() == _TAG:
        form = _tagged(written, trail)
    else:
        form = _normal(written, trail)
    trail.remove(id(value))
    return form


def _tagged(written: dict[str, object], trail: set[int]) -> _Json:
    if written["__type__"] == _BIG_INT:
        raise _NoFormError(f"a type registered under the marker {_BIG_INT!r}, which is taken")
    return {key: _normal(part, trail) for key, part in written.items()}


def _enter(container: object, trail: set[int]) -> None:
    if id(container) in trail:
        raise _NoFormError("a value that contains itself")
    if len(trail) >= MAX_DEPTH:
        raise _NoFormError(f"nested deeper than {MAX_DEPTH} levels")
    trail.add(id(container))


def _ask(value: object, question: Callable[[Any], Any]) -> Any:
    """Put a question that runs the application's code; whatever that raises is the value's fault.

    But for what is none of its doing: an error that the worker throws into whatever happens to run
    (SoftTimeLimitExceeded), and MemoryError.
    """
    try:
        return question(value)
    except MemoryError:
        raise
    except Exception as error:
        if _thrown_by_worker(error):
            raise
        failure = type(error)
    cause = "" if failure is TypeError else f": {failure.__qualname__} in its conversion"
    raise _NoFormError(f"type {type(value).__qualname__} has no JSON form{cause}")


def _thrown_by_worker(error: Exception) -> bool:
    """Told by the class's home, because this module knows neither Celery nor billiard."""
    homes = {str(kind.__module__).partition(".")[0] for kind in type(error).__mro__}
    return not homes.isdisjoint({"billiard", "celery"})


def _pairs(value: dict[object, object]) -> list[tuple[object, object]]:
    return [(pair[0], pair[1]) for pair in value.items()]  # here, where no pair is no bug of ours


def _encoded(value: object) -> tuple[object, bool]:
    """The encoder's word for a value, and whether the value's own class has put it so."""
    return _ENCODER.default(value), hasattr(value, "__json__")


_NORMALISERS: Final[dict[type, Callable[[Any, set[int]], _Json]]] = {
    str: _text,
    int: _whole,
    float: _real,
    bool: _literal,
    type(None): _literal,
    list: _array,
    tuple: _array,
    dict: _object,
}


# Binding.


def _bind(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:  # its text repeats what the caller wrote, so nobody gets to see it
        return None


def _names(signature: inspect.Signature, *kinds: object) -> list[str]:
    return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]


def _refuse_lookalikes(signature: inspect.Signature, kwargs: Mapping[str, Any]) -> None:
    """Before binding, because not every Python 3.11 to 3.13 binds such calls rightly (gh-87106)."""
    if not _names(signature, Parameter.VAR_KEYWORD):
        return
    for name in (SURPLUS_KEY, *_names(signature, Parameter.POSITIONAL_ONLY)):
        if name in kwargs:
            raise CanonicalizationError(f"$.{name}", "a keyword that reads like another parameter")


def _misfits(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[Any, Any]
) -> Iterator[str]:
    """What does not fit, in the order of Python's own questions."""
    by_place = _names(signature, Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    by_name = _names(signature, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    placed, keywords = by_place[: len(args)], [name for name in by_name if name in kwargs]
    if len(args) > len(by_place) and not _names(signature, Parameter.VAR_POSITIONAL):
        yield f"{len(args)} positional where at most {len(by_place)} can be"
    if missing := [name for name in _required(signature) if name not in {*placed, *keywords}]:
        yield f"missing: {_told(missing)}"
    if twice := [name for name in keywords if name in placed]:
        yield f"given both by position and by name: {_told(twice)}"
    open_ended = bool(_names(signature, Parameter.VAR_KEYWORD))
    strays = [name for name in kwargs if not (name in by_name or open_ended)]
    if strays := strays or [name for name in kwargs if not isinstance(name, str)]:
        yield f"unexpected keywords: {_told(strays)}"


def _required(signature: inspect.Signature) -> list[str]:
    optional = {name for name, p in signature.parameters.items() if p.default is not p.empty}
    various = _names(signature, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [name for name in signature.parameters if name not in {*optional, *various}]


def _told(names: Sequence[object]) -> str:
    """Some of the names; what is no short identifier may be a value gone astray: only counted."""
    shown = [name for name in names if isinstance(name, str) and _SHOWABLE.fullmatch(name)]
    shown = shown[:_NAMES_TOLD]
    hidden = len(names) - len(shown)
    return ", ".join([*shown, f"{hidden} not shown"] if hidden else shown)
