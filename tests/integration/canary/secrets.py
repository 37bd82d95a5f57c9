"""Secrets that are planted, and how they are recognised wherever they turn up.

A secret is known by its place (``positional``, ``dict key``, ``result``, ...) and by the number of
the path it went along. The same seed gives the same secrets in every process, so that a worker can
make the secrets of its results without being told them.

Texts are made of letters that hardly ever follow one another elsewhere, so that every piece of
:data:`PIECE` characters and more is known for what it is, without an alarm that is false.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

#: How long a piece of a secret text must be to be a leak.
PIECE: Final = 8

_LATIN: Final = "BGHJKPQVWXYZ"
_CYRILLIC: Final = "БГДЖЗИЛПФЦЧШ"
_LENGTH: Final = 24


class Mint:
    """Makes the secrets of a seed."""

    def __init__(self, seed: str) -> None:
        self.seed = seed

    def payload(self, path: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments, a secret in every place; the path itself is none."""
        text = self._texts(path)
        first = (path, text("positional"), {text("dict key"): 1, "list": [text("nested")]})
        return first, {
            "keyword": text("keyword"),
            "odd": text("odd") + "\"'\\\n" + self._text(path, "odd, not ASCII", _CYRILLIC),
            "number": self._random(path, "number").randrange(10**8 + 1, 10**9),
            "day": date(self._random(path, "date").randrange(2300, 9999), 11, 28),
            "data": b"\xff" + text("bytes").encode(),
            "uid": UUID(int=self._random(path, "uuid").getrandbits(128)),
            "amount": Decimal(self._random(path, "decimal").randrange(10**17, 10**18)).scaleb(-9),
        }

    def result(self, path: int) -> dict[str, Any]:
        """A result, a secret in every place."""
        text = self._texts(path)
        return {"whole": text("result"), text("result, dict key"): [{"x": text("result, nested")}]}

    def needles(self, path: int) -> Iterator[tuple[str, str]]:
        """Every form of every secret of a path that gives it away, with its place."""
        _, more = self.payload(path)
        texts = self._texts(path)
        places = ["positional", "dict key", "nested", "keyword", "odd", "bytes"]
        places += ["result", "result, dict key", "result, nested"]
        for place in places:
            yield from ((piece, place) for piece in pieces(texts(place)))
        strange = more["odd"].rsplit("\n", 1)[1]
        yield from ((piece, "odd, not ASCII") for piece in pieces(strange))
        yield str(more["number"]), "number"
        yield more["day"].isoformat(), "date"
        yield f"{more['day'].year}, 11, 28", "date"
        yield str(more["amount"]), "decimal"
        uid = more["uid"]
        yield from ((form, "uuid") for form in (str(uid)[:13], str(uid)[-17:], uid.hex))

    def _texts(self, path: int) -> Callable[[str], str]:
        return lambda place: self._text(path, place, _LATIN)

    def _text(self, path: int, place: str, letters: str) -> str:
        return "".join(self._random(path, place).choices(letters, k=_LENGTH))

    def _random(self, path: int, place: str) -> random.Random:
        return random.Random(f"{self.seed}/{path}/{place}")


def texts(mint: Mint, path: int) -> dict[str, str]:
    """Secrets of a path that are texts, by place."""
    (_, positional, _), more = mint.payload(path)
    result = mint.result(path)
    return {
        "positional": positional,
        "keyword": more["keyword"],
        "result": result["whole"],
        "odd, not ASCII": more["odd"].rsplit("\n", 1)[1],
    }


def pieces(text: str) -> Iterator[str]:
    """Every piece of exactly :data:`PIECE` characters; a longer one contains some of them."""
    return (text[at : at + PIECE] for at in range(len(text) - PIECE + 1))


@dataclass(frozen=True)
class Hit:
    """A secret that was found: which one, in which form, and after what."""

    path: int
    place: str
    form: str
    line: int
    before: str


#: What a needle can look like; only what one of these finds is looked up.
_SHAPES: Final = tuple(
    re.compile(shape)
    for shape in (
        r"(?<![0-9A-Za-z.])[0-9]{9}(?![0-9A-Za-z]|\.[0-9])",
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
        r"[0-9]{4}, 11, 28",
        r"[0-9]{9}\.[0-9]{9}",
        r"[0-9a-f]{8}-[0-9a-f]{4}",
        r"[0-9a-f]{4}-[0-9a-f]{12}",
        r"[0-9a-f]{32}",
    )
)
_RUNS: Final = re.compile(f"[{_LATIN}]{{{PIECE},}}|[{_CYRILLIC}]{{{PIECE},}}")
_ESCAPES: Final = re.compile(r"\\+u([0-9a-fA-F]{4})|((?:\\+x[0-9a-fA-F]{2})+)")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{14,}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{16,}")
_STANDARD: Final = str.maketrans("-_", "+/")


class Detector:
    """Finds the secrets of a mint in texts: raw, escaped, URL-encoded, in base64 and in hex."""

    def __init__(self, mint: Mint, paths: Iterable[int]) -> None:
        self._known = {n: (path, place) for path in paths for n, place in mint.needles(path)}
        self._decoded: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def hits(self, text: str) -> Iterator[Hit]:
        """Every secret in a text, each place and form once."""
        seen = set()
        for form, view in views(text):
            for at, needle, deeper in self._found(view):
                path, place = self._known[needle]
                if (key := (path, place, form + deeper)) not in seen:
                    seen.add(key)
                    line = view.count("\n", 0, at) + 1
                    before = view[max(0, view.rfind("\n", 0, at) + 1, at - 70) : at]
                    yield Hit(*key, line, before)

    def _found(self, view: str) -> Iterator[tuple[int, str, str]]:
        yield from ((at, needle, "") for at, needle in self._plain(view))
        for shape, decoders, name in (
            (_BASE64, _from_base64, ", base64"),
            (_HEX, _from_hex, ", hex"),
        ):
            for run in shape.finditer(view):
                word = (name, run.group())
                if word not in self._decoded:
                    self._decoded[word] = [
                        (needle, name)
                        for decoded in decoders(run.group())
                        for _, inner in views(decoded.decode("utf-8", "replace"))
                        for _, needle in self._plain(inner)
                    ]
                yield from ((run.start(), needle, form) for needle, form in self._decoded[word])

    def _plain(self, view: str) -> Iterator[tuple[int, str]]:
        for run in _RUNS.finditer(view):
            for at, piece in enumerate(pieces(run.group())):
                if piece in self._known:
                    yield run.start() + at, piece
        for shape in _SHAPES:
            for match in shape.finditer(view):
                if match.group() in self._known:
                    yield match.start(), match.group()


def views(text: str) -> Iterator[tuple[str, str]]:
    """The text, and what it says to whoever takes its escapes and its URL encoding away."""
    yield "raw", text
    if "\\" in text and (unescaped := _ESCAPES.sub(_unescaped, text)) != text:
        yield "escaped", unescaped
    if "%" in text and (unquoted := unquote(text)) != text:
        yield "URL-encoded", unquoted


def encodings(text: str) -> dict[str, str]:
    """A text in every form that :class:`Detector` must know."""
    data = text.encode()
    forms = {"raw": text, "json": json.dumps(text), "json twice": json.dumps(json.dumps(text))}
    forms |= {
        "repr": repr(data),
        "ascii": ascii(text),
        "hex": data.hex(),
        "HEX": data.hex().upper(),
    }
    forms["url"] = "".join(f"%{byte:02X}" for byte in data)
    for shift in range(3):
        shifted = b"\xff\xfe?"[:shift] + data
        forms[f"base64 {shift}"] = base64.b64encode(shifted).decode()
        forms[f"base64 {shift}, for URLs"] = base64.urlsafe_b64encode(shifted).decode()
    return forms


def _unescaped(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    return bytes.fromhex(re.sub(r"\\+x", "", match[2])).decode("utf-8", "replace")


def _from_base64(run: str) -> Iterator[bytes]:
    standard = run.translate(_STANDARD)
    for shift in range(4):
        whole = standard[shift : shift + (len(standard) - shift) // 4 * 4]
        yield base64.b64decode(whole)


def _from_hex(run: str) -> Iterator[bytes]:
    for shift in range(2):
        yield bytes.fromhex(run[shift : shift + (len(run) - shift) // 2 * 2])
