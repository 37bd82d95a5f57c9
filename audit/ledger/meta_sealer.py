"""The meta log: the checkpoints of all logs, in the order in which they were sealed.

Whoever has seen one checkpoint of it can be shown that no tenant's log was cut or forked since, so
this is the one log that witnesses watch. Each round adds the newest checkpoint of every log that
has grown.

It is there before any of them: its first checkpoint is that of the empty tree, in memory and folder
before the first row is sealed. So where a tenant's log has a checkpoint and there is no meta log,
somebody took it away, wherever a crash struck; that is damage, and no other is begun in its place.

What is guaranteed: a checkpoint stands in it once, wherever a crash strikes. Which ones do is found
in the log itself; the file ``gathered`` beside each log only says from where on to look. One that
says more than the meta log has is damage: the meta log was taken back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from audit.errors import LedgerDamagedError, MemoryDamagedError, TileError
from audit.ledger.folder import LedgerFolder
from audit.ledger.log_sealer import MOST, LogSealer, Open
from audit.ledger.tenant_reads import SealingMemory


class MetaSealer:
    """Seals the meta log.

    Args:
        memory: where the newest checkpoints are.
        folder: of the ledger.
        meta: its meta log.
    """

    def __init__(self, memory: SealingMemory, folder: LedgerFolder, meta: LogSealer) -> None:
        self._memory = memory
        self._folder = folder
        self._meta = meta
        self._gathered: dict[str, bytes] = {}
        self._size = 0
        self._begun = False
        self._tidied = False

    def begin(self, tenants: Iterable[str]) -> None:
        """See to it that there is a meta log; before anything of a tenant's is sealed.

        Args:
            tenants: whose rows the memory has.

        Raises: as :meth:`gather`.
        """
        if self._begun:
            return
        opened = self._meta.open()
        if opened.note is None:
            if self._has_traces(tenants):
                raise self._gone()
            self._meta.begin()
        else:
            self._check_hints(opened, self._folder.logs())
        self._begun = True

    def carry_over(self) -> None:
        """Have all signers sign the newest checkpoint, where one has not.

        Raises: as :meth:`gather`.
        """
        self._meta.sign_anew(self._meta.open())

    def gather(self, newest: Mapping[str, bytes], fresh: Collection[str]) -> None:
        """Add the checkpoints that the meta log does not have yet.

        Args:
            newest: the newest checkpoint of each log, by the log's name.
            fresh: the logs whose newest checkpoint was made just now, so that it cannot be there.

        Raises:
            LedgerDamagedError: the meta log is not as it was left.
            LedgerError: somebody else seals it, or the folder cannot be used.
            AuditMemoryError: the memory did not answer.
        """
        unknown = {log: note for log, note in newest.items() if self._gathered.get(log) != note}
        if not unknown:
            return
        opened = self._meta.open()
        if opened.note is None:
            raise self._gone()
        self._check_hints(opened, unknown)
        if not opened.edge.size:
            self._check_beginning()
        if not self._tidied:
            self._meta.tidy(opened)
            self._tidied = True
        missing = [
            log
            for log, note in unknown.items()
            if log in fresh or self._find(log, opened.edge.size) != note
        ]
        for start in range(0, len(missing), MOST):
            some, first = missing[start : start + MOST], opened.edge.size
            opened = self._meta.append(opened, [unknown[log] for log in some])
            self._size = opened.edge.size
            for index, log in enumerate(some, start=first):
                self._folder.log(log).put_gathered(index)
        self._gathered |= unknown

    def _check_hints(self, opened: Open, logs: Iterable[str]) -> None:
        """No log was gathered where the meta log does not reach; else it was taken back.

        A hint is written behind the swap that covers its entry, so no crash leaves one ahead.
        """
        hints = (self._folder.log(log).gathered() for log in logs)
        size = max([self._size, *(hint + 1 for hint in hints if hint is not None)])
        if size > opened.edge.size:
            self._meta.insist_on(opened)  # somebody else who seals may have gathered meanwhile
            raise self._damaged(
                f"ends at {opened.edge.size:,}, but has gathered {size:,} checkpoints: it was"
                " taken back"
            )

    def _check_beginning(self) -> None:
        """While it is empty, it has no more than the leftovers of a crash in its first round.

        Those hold each log once. What holds one twice is of a meta log that had entries.
        """
        if self._has_one_twice():
            raise self._damaged("is empty, but has gathered checkpoints")

    def _has_traces(self, tenants: Iterable[str]) -> bool:
        """Whether something was sealed already, so that there was a meta log."""
        meta, folder = self._meta.log, self._folder
        if meta.cosigned() is not None or meta.held():
            return True
        logs = map(folder.log, folder.logs())
        if any(log.checkpoint() is not None or log.gathered() is not None for log in logs):
            return True
        known = {*tenants, *folder.tenants().values()}
        return any(self._is_sealed(tenant_id) for tenant_id in sorted(known))

    def _is_sealed(self, tenant_id: str) -> bool:
        """Whether the memory has a checkpoint; what is none is that tenant's fault alone."""
        try:
            return self._memory.sealed(tenant_id) is not None
        except MemoryDamagedError:
            return False

    def _gone(self) -> LedgerDamagedError:
        return self._damaged("has no checkpoint, but was there before any log was sealed")

    def _damaged(self, fault: str) -> LedgerDamagedError:
        return LedgerDamagedError(
            f"the meta log {self._meta.log.root} {fault}; nothing is gathered until that is put"
            " right, run `audit verify`"
        )

    def _has_one_twice(self) -> bool:
        for bundle in (tile for tile in self._meta.log.held() if tile.level is None):
            origins = [entry.partition(b"\n")[0] for entry in self._meta.log.tiles.entries(bundle)]
            if len(set(origins)) < len(origins):
                return True
        return False

    def _find(self, log: str, size: int) -> bytes | None:
        """The newest checkpoint of a log that the meta log has."""
        hint = self._folder.log(log).gathered()
        try:
            if hint is not None and hint < size:
                hinted = self._meta.log.tiles.rows(size, hint)
                if _is_of(first := next(hinted), log):
                    return _last_of(log, chain([first], hinted))
            return _last_of(log, self._meta.log.tiles.rows(size))
        except TileError as error:
            raise LedgerDamagedError(f"the meta log has lost entries: {error}") from error


def _last_of(log: str, checkpoints: Iterable[bytes]) -> bytes | None:
    found = None
    for checkpoint in checkpoints:
        if _is_of(checkpoint, log):
            found = checkpoint
    return found


def _is_of(checkpoint: bytes, log: str) -> bool:
    return checkpoint.partition(b"\n")[0].endswith(b"/" + log.encode())
