"""The folder of one log: its checkpoint, its tiles, and where in the memory its rows stand.

::

    checkpoint              the newest signed checkpoint
    checkpoint.cosigned     the newest that a witness has cosigned as well; in the meta log only
    tile/...                level tiles and entry bundles (C2SP tlog-tiles)
    positions/...           beside each entry bundle, under its name: one position a line (not C2SP)
    gathered                the place in the meta log where this log's checkpoint stands (a hint)

A static file server can serve the folder as it is. What is guaranteed: every file is there whole or
not at all; :meth:`LogFolder.grow` returns when all of its files are durable, and writes none that
an older tree could need otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from audit.errors import LedgerDamagedError, LedgerError, TileConflictError, TileError
from audit.ledger.durable import flush_folder, make_folder, name_files, put_hint, replace_file
from audit.ledger.text import decode_decimal
from audit.ledger.tile_directory import UNNAMED, TileDirectory
from audit.ledger.tiles import WIDTH, Tile, check_content, tile_of

_CHECKPOINT: Final = "checkpoint"
_COSIGNED: Final = "checkpoint.cosigned"
_GATHERED: Final = "gathered"
_POSITIONS: Final = "positions"
_BUNDLES: Final = "tile/entries"


class LogFolder:
    """The folder of one log.

    Args:
        root: it; made when the first row is sealed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tiles = TileDirectory(root)
        self._flushed: set[Path] = set()

    @property
    def exists(self) -> bool:
        """Whether anything was ever sealed here, as far as can be seen."""
        return (self.root / _CHECKPOINT).exists() or (self.root / "tile").is_dir()

    # --- the checkpoint -----------------------------------------------------------------------

    def checkpoint(self) -> bytes | None:
        """The newest checkpoint, a signed note that nobody has verified yet; ``None``: none is.

        Raises:
            LedgerError: the file cannot be read.
        """
        return self._read(self.root / _CHECKPOINT)

    def put_checkpoint(self, note: bytes) -> None:
        """Put a checkpoint in the place of the one before.

        Raises:
            LedgerError: the disk does not take it; the one before is still there.
        """
        with errors_of_folder(self.root):
            make_folder(self.root)
            replace_file(self.root / _CHECKPOINT, note)

    def cosigned(self) -> bytes | None:
        """The newest checkpoint that a witness has cosigned, as in :meth:`checkpoint`.

        Raises:
            LedgerError: the file cannot be read.
        """
        return self._read(self.root / _COSIGNED)

    def put_cosigned(self, note: bytes) -> None:
        """Put a cosigned checkpoint in the place of the one before.

        Raises:
            LedgerError: the disk does not take it; the one before is still there.
        """
        with errors_of_folder(self.root):
            replace_file(self.root / _COSIGNED, note)

    # --- the tree -----------------------------------------------------------------------------

    def grow(
        self,
        tiles: Sequence[tuple[Tile, bytes]],
        positions: Sequence[tuple[Tile, Sequence[str]]] = (),
        *,
        replace: bool = False,
    ) -> None:
        """Make the new tiles and bundles durable, and beside bundles their positions.

        Args:
            tiles: what :func:`~audit.ledger.tiles.new_tiles` names, and what each holds.
            positions: bundles, and the positions of all of their entries.
            replace: whether files with other bytes may be replaced; for whoever knows that no
                checkpoint covers any of those.

        Raises:
            TileConflictError: one is there with other bytes.
            LedgerError: the disk does not take them.
        """
        for tile, content in tiles:
            check_content(tile, content)
        files = [(self.root / tile.to_path(), content) for tile, content in tiles]
        files += [(self._positions(tile), _lines(lines)) for tile, lines in positions]
        with errors_of_folder(self.root):
            found = name_files(self.root / UNNAMED, files, replace=replace, flushed=self._flushed)
        if found is not None:
            raise TileConflictError(
                f"{found.relative_to(self.root)} in {self.root} holds other bytes and was left"
                " alone: run `audit verify`"
            )

    def held(self) -> list[Tile]:
        """Every tile and bundle that is there, whether a checkpoint covers it or not.

        Raises:
            LedgerDamagedError: a file among them has the name of none.
            LedgerError: the folder cannot be read.
        """
        with errors_of_folder(self.root):
            files = [path for path in (self.root / "tile").rglob("*") if path.is_file()]
        try:
            return [Tile.parse(path.relative_to(self.root).as_posix()) for path in files]
        except TileError as error:
            raise LedgerDamagedError(f"a file among the tiles of {self.root} is none") from error

    def tidy(self, tiles: Sequence[Tile]) -> None:
        """Remove the partial files in the places of these full ones, which are sealed.

        Raises:
            LedgerError: a full one is missing, or the disk does not let go of a partial one.
        """
        for tile in tiles:
            if tile.is_full and self._partials(tile).is_dir():
                self.tiles.drop_partials(tile)
            if tile.is_full and tile.level is None:
                self._drop_partial_positions(tile)

    def drop_bundle(self, bundle: Tile) -> None:
        """Remove the rows of a full bundle for good; hashes and positions stay.

        Raises:
            LedgerError: the disk does not let go of it.
        """
        path = self.root / bundle.full().to_path()
        with errors_of_folder(self.root):
            for file in [*self._partials(bundle).glob("*"), path]:
                file.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self._partials(bundle).rmdir()
            flush_folder(path.parent)

    def drop_unnamed(self) -> None:
        """Remove what crashes have left half written; nobody else may be writing.

        Raises:
            LedgerError: the disk does not let go of it.
        """
        self.tiles.drop_unnamed()
        with errors_of_folder(self.root):
            for path in self.root.glob(".*.unnamed"):
                path.unlink(missing_ok=True)

    def positions(self, tile: Tile) -> list[str]:
        """The positions of a bundle's entries.

        Raises:
            LedgerDamagedError: they are not there, or not as many as the bundle has entries.
            LedgerError: they cannot be read.
        """
        content, held = self._read(self._positions(tile)), tile
        if content is None and not tile.is_full:
            held = tile.full()
            content = self._read(self._positions(held))
        lines = (content or b"").decode(errors="replace").splitlines()
        if len(lines) != held.width or not all(lines):
            raise LedgerDamagedError(
                f"{self.root}: {_POSITIONS} of {tile.to_path()} are not {tile.width} as they"
                " should be; run `audit verify`"
            )
        return lines[: tile.width]

    def last_positions(self, size: int, count: int) -> list[str]:
        """The positions of the last entries of a tree, at most ``count``, 256 or fewer.

        Raises: as :meth:`positions`.
        """
        found: list[str] = []
        index = (size - 1) // WIDTH
        while len(found) < count and index >= 0:
            found = self.positions(tile_of(None, index, size)) + found
            index -= 1
        return found[-count:]

    # --- the meta log -------------------------------------------------------------------------

    def gathered(self) -> int | None:
        """Where the meta log has a checkpoint of this log; a hint, which a crash may leave old."""
        content = self._read(self.root / _GATHERED)
        return None if content is None else decode_decimal(content.decode("ascii", "replace"))

    def put_gathered(self, index: int) -> None:
        """Remember the place of this log's newest checkpoint in the meta log.

        Raises:
            LedgerError: the disk does not take it.
        """
        with errors_of_folder(self.root):
            put_hint(self.root / _GATHERED, str(index).encode())

    # --- inside -------------------------------------------------------------------------------

    def _partials(self, tile: Tile) -> Path:
        return (self.root / Tile(tile.level, tile.index, 1).to_path()).parent

    def _positions(self, bundle: Tile) -> Path:
        return self.root / bundle.to_path().replace(_BUNDLES, _POSITIONS, 1)

    def _drop_partial_positions(self, bundle: Tile) -> None:
        folder = self._positions(Tile(None, bundle.index, 1)).parent
        with errors_of_folder(self.root), contextlib.suppress(FileNotFoundError):
            for path in folder.iterdir():
                path.unlink(missing_ok=True)
            folder.rmdir()
            flush_folder(folder.parent)

    def _read(self, path: Path) -> bytes | None:
        with errors_of_folder(self.root):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None


@contextlib.contextmanager
def errors_of_folder(root: Path) -> Iterator[None]:
    """Turns what the disk says into an error of the ledger that says what to do."""
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"the ledger {root} cannot be used ({error.strerror}): free space or rights there, or"
            " set AUDIT_LEDGER_DIR"
        ) from error


def _lines(positions: Sequence[str]) -> bytes:
    return "".join(f"{position}\n" for position in positions).encode()
