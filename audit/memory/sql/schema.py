"""Versions of the tables of a SQL memory."""

from __future__ import annotations

from importlib import resources
from typing import Final

#: The version that this release writes and reads.
VERSION: Final = 1


def ddl(name: str) -> str:
    """The statements that make the tables, of ``postgres`` or ``sqlite``."""
    return resources.files("audit.memory.sql").joinpath(f"{name}.sql").read_text(encoding="utf-8")
