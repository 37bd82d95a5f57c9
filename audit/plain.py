"""Text for a terminal: one line, with nothing in it that a terminal obeys or hides."""

from __future__ import annotations


def clean(text: str) -> str:
    """``text`` on one line, each character that cannot be seen replaced."""
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
