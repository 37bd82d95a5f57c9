r"""A text as it is, and with its escapes undone: in each reading a value can be found in one form.

Undone are the backslashes of Python and JSON, up to three layers of them, and beside them the
percent signs of URLs (RFC 3986, section 2.1) and the entities of HTML.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

#: How often a text is taken to be quoted, one time inside the other.
LAYERS: Final = 3

_ESCAPE: Final = re.compile(
    r"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<letter>.))",
    re.DOTALL,
)
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}

_MORE: Final = r"%[89abAB][0-9a-fA-F]"
_PERCENT: Final = re.compile(
    rf"\+|%[0-7][0-9a-fA-F]|%[cdCD][0-9a-fA-F]{_MORE}"
    rf"|%[eE][0-9a-fA-F](?:{_MORE}){{2}}|%[fF][0-7](?:{_MORE}){{3}}"
)
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8}[0-9]{0,2});")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a text; ``starts`` are its characters' places in the original, and the end."""

    text: str
    starts: Sequence[int]


def readings(text: str) -> Iterator[Reading]:
    """The text as it is, and what it is with each kind of escapes undone that it has."""
    whole = reading = Reading(text, range(len(text) + 1))
    yield whole
    for _ in range(LAYERS):
        if "\\" not in reading.text:
            break
        reading = _undone(reading, _ESCAPE, _meaning)
        yield reading
    if "%" in text or "+" in text:
        yield _undone(whole, _PERCENT, _of_url)
    if "&" in text:
        yield _undone(whole, _ENTITY, _of_html)


def _undone(
    reading: Reading, pattern: re.Pattern[str], meaning: Callable[[re.Match[str]], str]
) -> Reading:
    parts: list[str] = []
    starts: list[int] = []
    end = 0
    for match in pattern.finditer(reading.text):
        parts += (reading.text[end : match.start()], meaning(match))
        starts += reading.starts[end : match.start() + 1]
        end = match.end()
    return Reading("".join([*parts, reading.text[end:]]), [*starts, *reading.starts[end:]])


# Each gives the one character that an escape stands for.


def _meaning(match: re.Match[str]) -> str:
    if match["high"]:
        pair = bytes.fromhex(match["high"] + match["low"])
        return pair.decode("utf-16-be")
    if letter := match["letter"]:
        return _LETTERS.get(letter, letter)
    code = int(match["x"] or match["u"] or match["U"], 16)
    return chr(code) if code <= 0x10FFFF else "\ufffd"


def _of_url(match: re.Match[str]) -> str:
    if match[0] == "+":  # of a query, as forms write it
        return " "
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "replace")[0]


def _of_html(match: re.Match[str]) -> str:
    meant = html.unescape(match[0])
    return meant if len(meant) == 1 else "\ufffd"
