"""Sorting more records than memory should hold: sorted runs in an unnamed temporary file.

What is guaranteed: records come out in the order of their bytes, all of them, and memory stays flat
however many there are. The file has no name in any folder and is gone with its last use.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator
from typing import IO, Final

_RUN: Final = 1 << 16
_READ: Final = 1 << 12


class Spill:
    """Records of one size, to be read back sorted.

    Args:
        size: of each record, in bytes.
        run: how many are kept in memory.
    """

    def __init__(self, size: int, *, run: int = _RUN) -> None:
        self._size = size
        self._most = run
        self._kept: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []

    def add(self, record: bytes) -> None:
        self._kept.append(record)
        if len(self._kept) >= self._most:
            self._write()

    def __iter__(self) -> Iterator[bytes]:
        """All records so far, sorted."""
        self._kept.sort()
        return heapq.merge(*(self._read(*run) for run in self._runs), self._kept)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open until close()
        start = self._file.seek(0, 2)
        self._kept.sort()
        self._file.write(b"".join(self._kept))
        self._runs.append((start, len(self._kept)))
        self._kept = []

    def _read(self, start: int, count: int) -> Iterator[bytes]:
        size = self._size
        for first in range(0, count, _READ):
            block = self._block(start + first * size, min(_READ, count - first) * size)
            yield from (block[at : at + size] for at in range(0, len(block), size))

    def _block(self, start: int, length: int) -> bytes:
        if self._file is None:
            return b""
        self._file.seek(start)
        return self._file.read(length)
