"""The figures in a document: what stands between a section's markers is replaced by a new run's.

A section begins with ``<!-- bench:NAME -->`` and ends with ``<!-- /bench -->``, each on a line of
its own. What stands outside is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bench.processes import BenchError

#: What of the environment a reader needs beside the figures; the command's output says the rest.
SHOWN: Final = ("CPU", "cores", "system", "Python", "celery", "redis", "server", "load average")

_SECTION: Final = re.compile(r"^<!-- bench:([a-z]+) -->\n(.*?)^<!-- /bench -->$", re.M | re.S)


class Document:
    """A file whose sections are written one by one, as soon as each is measured.

    Raises:
        BenchError: it cannot be read, or has a place for none of the sections; before anything is
            measured.
    """

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self._path = path
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BenchError(f"cannot write into {path}: {error.strerror}") from None
        self._wanted = sections(text) & set(names)
        if not self._wanted:
            raise BenchError(f"{path} has no place for {', '.join(names)}")

    def write(self, name: str, report: str, environment: Mapping[str, str], command: str) -> None:
        """Put the section there, if the document has a place for it."""
        if name in self._wanted:
            text = self._path.read_text(encoding="utf-8")
            written = replaced(text, name, content(report, environment, command))
            self._path.write_text(written, encoding="utf-8")


def sections(text: str) -> frozenset[str]:
    """The names of the sections that the document has."""
    return frozenset(found[1] for found in _SECTION.finditer(text))


def replaced(text: str, section: str, content: str) -> str:
    """The document with that content between the markers of one section.

    Raises:
        BenchError: the document has no such section, or has it twice.
    """
    found = [match for match in _SECTION.finditer(text) if match[1] == section]
    if len(found) != 1:
        raise BenchError(f"the document has {len(found)} places for the section {section!r}, not 1")
    begin, end = found[0].span(2)
    return f"{text[:begin]}{content.strip()}\n{text[end:]}"


def content(report: str, environment: Mapping[str, str], command: str) -> str:
    """A section's tables below the day, the command and the machine."""
    shown = ", ".join(f"{name} {environment[name]}" for name in SHOWN)
    day = environment["date"].partition("T")[0]
    return f"Written by `{command}` on {day}; {shown}.\n\n{report}"
