"""What the ledger reads of a memory: entries by their positions, and their order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_POSITION: Final = re.compile(r"[0-9]{1,20}(?:-[0-9]{1,20})?")
#: The greatest number that there is in a position.
_MOST: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored row as the ledger takes it: where it stands, and its bytes, unread.

    Attributes:
        position: where it stands.
        stored: its bytes; of a foreign entry names and values of all its fields, in one.
        foreign: whether this is no row of anybody's: it has other fields than a row has.
    """

    position: str
    stored: bytes
    foreign: bool = False


def order_of(position: str) -> tuple[int, int]:
    """What positions of one tenant are compared by.

    Raises:
        ValueError: that is no position.
    """
    if _POSITION.fullmatch(position) is None:
        raise ValueError("that is no position")
    major, _, minor = position.partition("-")
    place = int(major), int(minor or 0)
    if max(place) > _MOST:
        raise ValueError("that is no position")
    return place


def check_swap(new: bytes, position: str | None) -> None:
    """Raises ValueError: that could not be told from none."""
    if not new or position == "":
        raise ValueError("an empty checkpoint or position cannot be told from none")


def check_limit(limit: int) -> None:
    """Raises ValueError: a page of no entries."""
    if limit < 1:
        raise ValueError(f"a page has 1 entry at least, not {limit}")
