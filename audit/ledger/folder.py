"""The folder of a ledger, ``AUDIT_LEDGER_DIR``: its logs, its public keys, whose logs they are.

::

    LOG/                    one log each, see ``log``; named by the pseudonym that ends its origin
    meta/                   the log of the logs' checkpoints
    keys                    verifier keys, one a line, every key that ever signed
    tenants                 "LOG TENANT" a line; for the operator alone, mode 0600
    lock                    held by whoever seals

What is guaranteed: on one machine, one at a time seals (:meth:`LedgerFolder.locked`), and a crash
of whoever did leaves no lock behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from audit.errors import LedgerDamagedError, LedgerError, NoteKeyError
from audit.ledger.durable import FILE_MODE, make_folder, replace_file
from audit.ledger.log import LogFolder, errors_of_folder
from audit.ledger.note_key import VerifierKey

#: The name of the meta log: of its folder, of its role in the memory, and the end of its origin.
META: Final = "meta"

_OWNER_ONLY: Final = 0o600


class LedgerFolder:
    """The folder of a ledger.

    Args:
        root: it; made when it is first locked.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def log(self, name: str) -> LogFolder:
        """The log of that name, a pseudonym or :data:`META`."""
        return LogFolder(self.root / name)

    def logs(self) -> list[str]:
        """The names of the tenants' logs that have a folder here, sorted.

        Raises:
            LedgerError: it cannot be read.
        """
        with errors_of_folder(self.root):
            found = [path.name for path in self.root.iterdir() if path.is_dir()]
        return sorted(name for name in found if name != META)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether this is the one that seals; never waits.

        Raises:
            LedgerError: the folder cannot be made or written.
        """
        with errors_of_folder(self.root):
            make_folder(self.root)
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
        try:
            yield self._lock(descriptor)
        finally:
            os.close(descriptor)

    def drop_unnamed(self) -> None:
        """Remove what crashes have left half written; only for whoever holds the lock.

        Raises:
            LedgerError: the disk does not let go of it.
        """
        with errors_of_folder(self.root):
            for path in self.root.glob(".*.unnamed"):
                path.unlink(missing_ok=True)

    def keys(self) -> list[VerifierKey]:
        """Every key that ever signed here, in the order of their coming.

        Raises:
            LedgerDamagedError: a line is none.
        """
        try:
            return [VerifierKey.parse(line) for line in self._lines("keys")]
        except NoteKeyError as error:
            raise LedgerDamagedError(
                f"{self.root / 'keys'} holds a damaged verifier key: {error}; put the file back"
                " from a backup"
            ) from error

    def put_keys(self, keys: Iterable[VerifierKey]) -> None:
        """Replace the list of keys.

        Raises:
            LedgerError: the disk does not take it.
        """
        self._put("keys", [key.to_text() for key in keys], FILE_MODE)

    def tenants(self) -> dict[str, str]:
        """Whose each log is: the tenant's id by the log's name.

        Raises:
            LedgerError: the file cannot be read.
        """
        pairs = (line.partition(" ") for line in self._lines("tenants"))
        return {log: tenant_id for log, _, tenant_id in pairs}

    def put_tenants(self, tenants: dict[str, str]) -> None:
        """Replace the list of tenants.

        Raises:
            LedgerError: the disk does not take it.
        """
        lines = [f"{log} {tenant_id}" for log, tenant_id in tenants.items()]
        self._put("tenants", lines, _OWNER_ONLY)

    # --- inside -------------------------------------------------------------------------------

    def _lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise LedgerError(f"{self.root} cannot be locked: {error.strerror}") from error
        return True

    def _lines(self, name: str) -> list[str]:
        with errors_of_folder(self.root):
            try:
                text = (self.root / name).read_text(encoding="utf-8", errors="replace")
                return text.splitlines()
            except FileNotFoundError:
                return []

    def _put(self, name: str, lines: list[str], mode: int) -> None:
        content = "".join(f"{line}\n" for line in lines).encode()
        with errors_of_folder(self.root):
            replace_file(self.root / name, content, mode=mode)
