"""Files that are there whole and durable, or not at all, wherever a crash strikes.

A file is written under a name that nobody reads, flushed, given its name, and the folder is flushed
as well before any function here returns. Flushing is what takes the time; many files are flushed
side by side, which a journal does in a few steps.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from uuid import uuid4

FOLDER_MODE: Final = 0o750
FILE_MODE: Final = 0o640
#: At a time: descriptors that are open, and threads that flush.
_MANY: Final = 256
_THREADS: Final = 8


def replace_file(path: Path, content: bytes, *, mode: int = FILE_MODE) -> None:
    """Put a file in the place of whatever is there; its folder has to be there.

    What crashes leave of it ends in ``.unnamed``.

    Raises:
        OSError: the disk does not take it; what was there is untouched.
    """
    unnamed = path.with_name(f".{uuid4().hex}.unnamed")
    try:
        write_file(unnamed, content, mode=mode)
        unnamed.rename(path)
    finally:
        unnamed.unlink(missing_ok=True)
    flush_folder(path.parent)


def name_files(
    unnamed: Path,
    files: Sequence[tuple[Path, bytes]],
    *,
    replace: bool = False,
    flushed: set[Path] | None = None,
) -> Path | None:
    """Write many files, side by side.

    Args:
        unnamed: a folder in which they are written before they have their names; all of them lie
            below the folder that it lies in.
        files: where each goes, and what it holds.
        replace: whether a file may take the place of one with other bytes.
        flushed: folders that this process has flushed; those of these files are added.

    Returns:
        the first path at which other bytes were found; then those behind it are not written.

    Raises:
        OSError: the disk does not take them; some may be there.
    """
    for folder in dict.fromkeys([unnamed, *(path.parent for path, _ in files)]):
        make_folder(folder)
    found = None
    for start in range(0, len(files), _MANY):
        found = _name_some(unnamed, files[start : start + _MANY], replace)
        if found is not None:
            break
    known = set() if flushed is None else flushed
    folders = _to_flush([path for path, _ in files], unnamed.parent.parent, known)
    _side_by_side(flush_folder, folders)
    known |= folders
    return found


def _to_flush(paths: Iterable[Path], top: Path, flushed: set[Path]) -> set[Path]:
    """The folders that files lie in, up to ``top``.

    Whoever made one may have crashed before its name was durable, so each is flushed once; after
    that only where names come and go, in a file's own folder and in the one above.
    """
    folders: set[Path] = set()
    for parent in {path.parent for path in paths}:
        above = [parent, *parent.parents[: parent.parents.index(top) + 1]]
        folders |= {folder for folder in above[2:] if folder not in flushed} | set(above[:2])
    return folders


def _name_some(unnamed: Path, files: Sequence[tuple[Path, bytes]], replace: bool) -> Path | None:
    written = [unnamed / uuid4().hex for _ in files]
    try:
        _write_all(list(zip(written, (content for _, content in files), strict=True)))
        for source, (path, content) in zip(written, files, strict=True):
            if not _name(source, path, content, replace):
                return path
        return None
    finally:
        for source in written:
            source.unlink(missing_ok=True)


def _write_all(files: Sequence[tuple[Path, bytes]]) -> None:
    with contextlib.ExitStack() as stack:
        descriptors = [
            stack.enter_context(_written(path, content, FILE_MODE)) for path, content in files
        ]
        _side_by_side(os.fsync, descriptors)


def _side_by_side(flush: Callable[..., None], what: Iterable[int] | Iterable[Path]) -> None:
    targets = list(what)
    if len(targets) == 1:
        flush(targets[0])
        return
    with ThreadPoolExecutor(min(_THREADS, len(targets) or 1)) as pool:
        for _ in pool.map(flush, targets):
            pass


def _name(source: Path, path: Path, content: bytes, replace: bool) -> bool:
    """Whether the file has its name now, or had it with the same bytes."""
    try:
        os.link(source, path)  # unlike a rename it never overwrites
    except FileExistsError:
        if path.read_bytes() == content:
            return True
        if not replace:
            return False
        source.rename(path)
    return True


def write_file(path: Path, content: bytes, *, mode: int = FILE_MODE) -> None:
    """Make a new file, flushed; its name is durable once its folder is flushed.

    Raises:
        OSError: it is there already, or the disk does not take it.
    """
    with _written(path, content, mode) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def _written(path: Path, content: bytes, mode: int) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        yield descriptor
    finally:
        os.close(descriptor)


def put_hint(path: Path, content: bytes) -> None:
    """Replace a file that may be lost or empty after a crash, because it can be found out again.

    Raises:
        OSError: the disk does not take it.
    """
    unnamed = path.with_name(f".{uuid4().hex}.unnamed")
    unnamed.write_bytes(content)
    unnamed.rename(path)


def make_folder(folder: Path) -> None:
    """Make a folder, and durable up to the first that was there.

    Raises:
        OSError: the disk does not take it.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: the disk does not take them.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
