"""The files of a tiled log (C2SP tlog-tiles), below a folder that a static file server can serve.

What is guaranteed: a tile is there whole and durable, or not at all, wherever a crash strikes: it
is written under a name that nobody reads, flushed, given its name, and the folders are flushed as
well before :meth:`TileDirectory.write_all` returns. A tile that is there is never overwritten with
other bytes, not by another process at the same moment either. Writing the same bytes again does no
harm, so whoever crashed simply does its work again.

Rows are for whom the group of the folder lets read; nobody else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final
from uuid import uuid4

from audit.errors import ProofError, TileConflictError, TileError, TileMissingError
from audit.ledger.durable import flush_folder, make_folder, write_file
from audit.ledger.merkle import fold
from audit.ledger.tiles import (
    HEIGHT,
    WIDTH,
    Tile,
    check_content,
    decode_entries,
    decode_hashes,
    narrowed,
    tile_of,
)

#: Where tiles are written before they have their name; on the same disk, and served to nobody.
UNNAMED: Final = ".unnamed"


class TileDirectory:
    """The tiles and entry bundles of one log.

    Args:
        root: the folder of the log, what a server would serve as its prefix; made when needed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._flushed: set[Path] = set()

    # --- reading ------------------------------------------------------------------------------

    def read(self, tile: Tile) -> bytes:
        """The content of a tile or bundle; of a partial one also out of the full one.

        Raises:
            TileMissingError: it is not there.
            TileError: the file cannot be read or is malformed.
        """
        content = self._read(tile)
        check_content(tile, content)
        return content

    def hashes(self, tile: Tile) -> list[bytes]:
        """The hashes of a tile; errors as in :meth:`read`."""
        return decode_hashes(self._read(tile), tile.width)

    def entries(self, tile: Tile) -> list[bytes]:
        """The entries of a bundle; errors as in :meth:`read`."""
        return decode_entries(self._read(tile), tile.width)

    def leaf_hashes(self, size: int, start: int = 0) -> Iterator[bytes]:
        """The leaf hashes of a tree of ``size`` leaves, from the place ``start``, tile by tile."""
        for tile, skipped in _tiles_from(0, size, start):
            yield from self.hashes(tile)[skipped:]

    def rows(self, size: int, start: int = 0) -> Iterator[bytes]:
        """The entries of a tree of ``size`` leaves, from the place ``start``, bundle by bundle."""
        for tile, skipped in _tiles_from(None, size, start):
            yield from self.entries(tile)[skipped:]

    def node_reader(self, size: int, *, cache: int = 64) -> TileNodes:
        """What :mod:`audit.ledger.merkle` needs to prove something about a tree of that size."""
        return TileNodes(self, size, cache=cache)

    # --- writing ------------------------------------------------------------------------------

    def write(self, tile: Tile, content: bytes, *, replace: bool = False) -> None:
        """Make one tile or bundle durable; as in :meth:`write_all`."""
        self.write_all([(tile, content)], replace=replace)

    def write_all(self, tiles: Iterable[tuple[Tile, bytes]], *, replace: bool = False) -> None:
        """Make tiles and bundles durable, flushing each folder once.

        Args:
            tiles: which, and what they hold; taken one by one, so they need not fit in memory.
            replace: whether a partial tile may take the place of another one of its width; for
                whoever knows that no checkpoint covers that. A full tile is never replaced.

        Raises:
            TileConflictError: one is there with other bytes, and was left alone.
            TileError: a content is malformed, or the disk does not take it. In either case those
                before it may have been written, durably or not.
        """
        folders: set[Path] = set()
        for tile, content in tiles:
            check_content(tile, content)
            with self._errors_of_ours():
                path = self._write_one(tile, content, replace and not tile.is_full)
            folders.update(self._to_flush(path))
        with self._errors_of_ours():
            for folder in folders:
                flush_folder(folder)
        self._flushed |= {folder for folder in folders if folder.suffix != ".p"}

    def drop_partials(self, tile: Tile) -> None:
        """Remove the partial tiles in the place of a full one.

        Raises:
            TileMissingError: the full one is not there; nothing was removed.
            TileError: the disk does not let go of them.
        """
        self.read(tile.full())
        folder = (self.root / Tile(tile.level, tile.index, 1).to_path()).parent
        with self._errors_of_ours(), contextlib.suppress(FileNotFoundError):
            for path in folder.iterdir():
                path.unlink(missing_ok=True)
            folder.rmdir()

    def drop_unnamed(self) -> None:
        """Remove what crashes have left half written; nobody else may be writing.

        Raises:
            TileError: the disk does not let go of it.
        """
        with self._errors_of_ours(), contextlib.suppress(FileNotFoundError):
            for path in (self.root / UNNAMED).iterdir():
                path.unlink(missing_ok=True)

    # --- inside -------------------------------------------------------------------------------

    def _read(self, tile: Tile) -> bytes:
        if (content := self._content(tile)) is not None:
            return content
        # Only now, because a partial tile is removed when the full one is there, never before.
        if not tile.is_full and (content := self._content(tile.full())) is not None:
            return narrowed(tile, content)
        raise TileMissingError(f"{tile.to_path()} is not in {self.root}")

    def _content(self, tile: Tile) -> bytes | None:
        try:
            return (self.root / tile.to_path()).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TileError(f"{tile.to_path()} cannot be read: {error.strerror}") from error

    def _to_flush(self, path: Path) -> set[Path]:
        """The folders that a tile just written lies in, up to the one with the log.

        Whoever made one may have crashed before that was durable, so each is flushed once; after
        that only where names come and go, in the tile's own folder and, for a partial one, above.
        """
        above = path.parents[: path.parents.index(self.root.parent) + 1]
        return {folder for folder in above[2:] if folder not in self._flushed} | set(above[:2])

    def _write_one(self, tile: Tile, content: bytes, replace: bool) -> Path:
        """Write and name a tile; the folders that it lies in are still to be flushed."""
        path = self.root / tile.to_path()
        unnamed = self.root / UNNAMED / uuid4().hex
        for folder in (unnamed.parent, path.parent):
            make_folder(folder)
        try:
            write_file(unnamed, content)
            self._name(unnamed, path, tile, content, replace)
        finally:
            unnamed.unlink(missing_ok=True)
        return path

    def _name(self, unnamed: Path, path: Path, tile: Tile, content: bytes, replace: bool) -> None:
        try:
            os.link(unnamed, path)  # unlike a rename it never overwrites
        except FileExistsError:
            if path.read_bytes() == content:
                return
            if not replace:
                raise TileConflictError(
                    f"{tile.to_path()} in {self.root} holds other bytes and was left alone: what"
                    " is sealed does not change; run `audit verify`"
                ) from None
            unnamed.rename(path)

    @contextlib.contextmanager
    def _errors_of_ours(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TileError(
                f"the ledger {self.root} does not take tiles ({error.strerror}): free space or"
                " rights there, or set AUDIT_LEDGER_DIR"
            ) from error


class TileNodes:
    """The hashes of complete subtrees, out of tiles (a :data:`~audit.ledger.merkle.NodeReader`).

    Args:
        directory: where the tiles are.
        size: of the tree; it says how wide its last tiles are.
        cache: how many tiles are kept, 8 KiB each.
    """

    def __init__(self, directory: TileDirectory, size: int, *, cache: int = 64) -> None:
        self._size = size
        self._hashes = lru_cache(cache)(
            lambda level, index: directory.hashes(tile_of(level, index, size))
        )

    def __call__(self, level: int, index: int) -> bytes:
        """The hash over the leaves ``index << level`` to ``(index + 1) << level``.

        Raises:
            ProofError: the tree has no such complete subtree.
            TileError: its tile is missing or malformed.
        """
        if level < 0 or index < 0 or (index + 1) << level > self._size:
            raise ProofError(f"a tree of {self._size} leaves has no complete subtree there")
        # The subtree's hashes on the nearest level that tiles hold, which all lie in one tile.
        height = level % HEIGHT
        first = index << height
        hashes = self._hashes(level // HEIGHT, first // WIDTH)
        return fold(hashes[first % WIDTH : first % WIDTH + (1 << height)])


def _tiles_from(level: int | None, size: int, start: int) -> Iterator[tuple[Tile, int]]:
    """The tiles of the leaves from ``start`` on, and how many of each come before that."""
    for index in range(start // WIDTH, -(-size // WIDTH)):
        tile = tile_of(level, index, size)
        yield tile, max(0, start - tile.start)
