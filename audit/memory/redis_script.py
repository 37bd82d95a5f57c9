"""The scripts that Redis and Valkey run, put together from the files of this package."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Final

#: Every file that is a script of its own begins so; a script that is put together, once.
_SHEBANG: Final = "#!lua\n"


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the name that a server gives it, so that it need not be asked."""

    text: str
    sha: str

    @classmethod
    def of(cls, file: str, *behind: str) -> Script:
        """The script of a file; with others behind it, its own part is their ``append()``."""
        text = _read(file)
        if behind:
            own = text.removeprefix(_SHEBANG)
            text = "\n".join(
                (f"{_SHEBANG}local function append()", own, "end", *map(_read, behind))
            )
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _read(file: str) -> str:
    return resources.files("audit.memory").joinpath(file).read_text(encoding="utf-8")
