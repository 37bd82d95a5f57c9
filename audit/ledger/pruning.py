"""Pruning: the rows of old bundles are removed for good, and every hash of them stays.

Of a pruned bundle the file ``tile/entries/...`` is gone and nothing else: level tiles keep the leaf
hashes, ``positions`` their places, so each checkpoint and each proof holds as before (the pruning
of C2SP tlog-tiles: a prefix of the log, whole bundles). A sealed row ``audit.pruned`` of the same
tenant says which rows are gone: from 0 on, as many as it says, those of earlier times included. It
is signed, see :mod:`audit.ledger.pruned`; a missing bundle that none covers is evidence.

What is guaranteed: nothing goes before that row is sealed. Only bundles go that are full, sealed,
of the very rows that were sealed, all older than asked, and of no open invocation; a changed row is
evidence and stays. An entry that is no row keeps nothing (:mod:`audit.ledger.moments`). A crash
anywhere leaves what the same command, given again, finishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from ulid import ULID

from audit.errors import LedgerDamagedError, LedgerError, RowError, TileMissingError
from audit.ledger.archive import Archive
from audit.ledger.checkpoint import open_checkpoint, origin_of
from audit.ledger.folder import LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.log import LogFolder
from audit.ledger.merkle import fold, leaf_hash, root
from audit.ledger.moments import judged, may_go
from audit.ledger.pruned import BEGINS, is_sound, pruned_rows, sign_pruned
from audit.ledger.tiles import HEIGHT, WIDTH, Tile, tile_of
from audit.memory.base import AuditMemory, RowFilter, order_of
from audit.row import AuditRow, timestamp
from audit.system_rows import audit_pruned

#: Seconds to wait until the row is sealed, and between two looks.
PATIENCE: Final = 30.0
LOOK: Final = 0.1
#: Entries read in one go; the memory serves nobody else meanwhile.
_PAGE: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Prune:
    """What is to go of one tenant's log.

    Attributes:
        tenant_id: whose.
        before: rows older than this.
        rows: the first so many of the log are all of them; a multiple of 256.
        gone: how many of those are gone already.
        root: of the tree of those rows, 64 hex digits; empty for none.
    """

    tenant_id: str
    before: datetime
    rows: int = 0
    gone: int = 0
    root: str = ""

    @property
    def left(self) -> int:
        """How many rows go."""
        return self.rows - self.gone


class Pruner:
    """Prunes the logs of a ledger.

    Args:
        memory: where the rows are.
        folder: the ledger's.
        origin: what the origins of its logs begin with.
        keys: verify its checkpoints, and sign what was pruned.
        seal: seals what is there; a keeper may do so as well.
        worker: what the rows name as their writer.
        now: the wall clock.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        memory: AuditMemory,
        folder: LedgerFolder,
        *,
        origin: str,
        keys: LedgerKeys,
        seal: Callable[[], object],
        worker: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._memory = memory
        self._folder = folder
        self._origin = origin
        self._keys = keys
        self._seal = seal
        self._worker = worker
        self._now = now
        self._pause = pause

    def plan(self, tenant_id: str, before: datetime) -> Prune:
        """What would go; nothing is changed.

        Raises:
            LedgerDamagedError: what is sealed is not as it was left; all of it is evidence.
            LedgerError: the ledger cannot be read.
            AuditMemoryError: the memory did not answer.
        """
        note = self._memory.sealed(tenant_id)
        log = self._log(tenant_id)
        nothing = Prune(tenant_id=tenant_id, before=before)
        if note is None or log is None:
            return nothing
        size = self._verified_size(log, tenant_id, note)
        announced = self._pruned(log, tenant_id, size)
        running = self._memory.running(tenant_id)
        still_open = {str(row.payload.get("request_id")) for row in running}
        old, gone = _old(log, size, announced, before, still_open)
        rows = old // WIDTH * WIDTH
        if not rows:
            return nothing
        top = root(rows, log.tiles.node_reader(size)).hex()
        return Prune(tenant_id=tenant_id, before=before, rows=rows, gone=gone, root=top)

    def prune(self, prune: Prune) -> int:
        """Do what was planned; how many rows went from the bundles.

        Raises:
            LedgerError: the row that says so is not sealed, or the disk does not let go.
            AuditMemoryError: the memory did not answer.
        """
        log = self._log(prune.tenant_id)
        if not prune.left or log is None:
            return 0
        self._wait_until_sealed(log, self._announce(prune))
        self._memory.trim(prune.tenant_id, _behind(log, prune.rows))
        for index in range(prune.rows // WIDTH):
            log.drop_bundle(Tile(None, index))
        return prune.left

    # --- saying so ----------------------------------------------------------------------------

    def _announced(self, tenant_id: str) -> Iterator[AuditRow]:
        """Rows that say what was pruned, sealed or not; of entries that are no rows, none."""
        archive = Archive(self._folder, self._keys.verifiers)
        # The memory first: what is trimmed meanwhile is in the bundles then.
        for position, stored in chain(self._hot(tenant_id), archive.stored(tenant_id)):
            if stored.startswith(BEGINS):
                with suppress(RowError):
                    yield AuditRow.from_bytes(stored, position)

    def _hot(self, tenant_id: str) -> Iterator[tuple[str, bytes]]:
        after = None
        while page := self._memory.entries(tenant_id, after, _PAGE):
            yield from ((entry.position, entry.stored) for entry in page if not entry.foreign)
            after = page[-1].position

    def _pruned(self, log: LogFolder, tenant_id: str, size: int) -> int:
        if _first_is_there(log, size):
            return 0
        return pruned_rows(log.tiles, size, self._origin_of(tenant_id), self._keys.verifiers)

    def _announce(self, prune: Prune) -> AuditRow:
        """The stored row that covers what is to go: one from before a crash, or a new one."""
        origin = self._origin_of(prune.tenant_id)
        for row in self._announced(prune.tenant_id):
            said = row.payload.get("rows"), row.payload.get("root")
            if said == (prune.rows, prune.root) and is_sound(
                row.payload, origin, self._keys.verifiers
            ):
                return row
        made = audit_pruned(
            str(ULID()),
            prune.tenant_id,
            before=timestamp(prune.before),
            first_index=0,
            rows=prune.rows,
            root=prune.root,
            note=sign_pruned(origin, prune.rows, bytes.fromhex(prune.root), self._keys),
            ts=timestamp(self._now()),
            worker=self._worker,
        )
        self._memory.emit(made)
        wanted = RowFilter(tenant_id=prune.tenant_id, request_id=made.request_id)
        return next(iter(self._memory.select(wanted)))

    def _wait_until_sealed(self, log: LogFolder, row: AuditRow) -> None:
        position, waited = order_of(str(row.position)), 0.0
        self._seal()
        while position > self._last_sealed(log, row.tenant_id):
            if waited >= PATIENCE:
                raise LedgerError(
                    "nothing was removed: the row that says so is not sealed; see to the sealing"
                    " (`audit seal`), then prune again"
                )
            self._pause(LOOK)
            waited += LOOK
            self._seal()

    def _last_sealed(self, log: LogFolder, tenant_id: str) -> tuple[int, int]:
        note = self._memory.sealed(tenant_id)
        size = self._verified_size(log, tenant_id, note) if note else 0
        return order_of(log.last_positions(size, 1)[0]) if size else (0, 0)

    # --- what is sealed -----------------------------------------------------------------------

    def _log(self, tenant_id: str) -> LogFolder | None:
        names = [name for name, whose in self._folder.tenants().items() if whose == tenant_id]
        return self._folder.log(names[0]) if names else None

    def _verified_size(self, log: LogFolder, tenant_id: str, note: bytes) -> int:
        origin = self._origin_of(tenant_id)
        keys = self._keys.verifiers_of(origin)
        checkpoint = open_checkpoint(note, origin, keys).checkpoint
        if root(checkpoint.size, log.tiles.node_reader(checkpoint.size)) != checkpoint.root:
            raise LedgerDamagedError(
                f"the tiles in {log.root} do not make up the root that was signed; nothing was"
                " removed, run `audit verify`"
            )
        return checkpoint.size

    def _origin_of(self, tenant_id: str) -> str:
        return origin_of(self._origin, tenant_id, self._keys.secret)


def _first_is_there(log: LogFolder, size: int) -> bool:
    """Whether nothing is missing at the beginning, so that nobody need say why."""
    if size < WIDTH:
        return True
    try:
        log.tiles.read(Tile(None, 0))
    except TileMissingError:
        return False
    return True


def _old(
    log: LogFolder, size: int, announced: int, before: datetime, still_open: Collection[str]
) -> tuple[int, int]:
    """How many of the first rows may go, and how many of those are gone already."""
    old = gone = 0
    for index in range(-(-size // WIDTH)):
        start, full = index * WIDTH, (index + 1) * WIDTH <= size
        if not full and old == start:
            break  # it stays anyway, and nothing before it hangs on it
        found = _bundle(log, index, size)
        if found is None and start >= announced:
            raise _lost(log, start)
        if found is None:
            old, gone = start + WIDTH, gone + WIDTH
            continue
        told = list(judged(found, before, still_open))
        if count := may_go(told):
            old = start + count
        if len(told) < len(found):
            break
    return old, gone


def _bundle(log: LogFolder, index: int, size: int) -> list[bytes] | None:
    """The rows of a bundle, exactly as they were sealed; ``None`` if they are gone."""
    hashes = log.tiles.hashes(tile_of(0, index, size))
    try:
        entries = log.tiles.entries(tile_of(None, index, size))
    except TileMissingError:
        entries = None
    told = hashes if entries is None else list(map(leaf_hash, entries))
    full = len(hashes) == WIDTH
    if told != hashes or (full and fold(hashes) != log.tiles.node_reader(size)(HEIGHT, index)):
        raise LedgerDamagedError(
            f"rows {index * WIDTH} to {index * WIDTH + len(hashes) - 1} in {log.root} are not what"
            " was sealed, and that is evidence: nothing was removed, run `audit verify`"
        )
    return entries


def _behind(log: LogFolder, rows: int) -> str:
    """The first position that is none of the first so many rows."""
    last = log.positions(tile_of(None, rows // WIDTH - 1, rows))[-1]
    major, minor = order_of(last)
    return f"{major}-{minor + 1}"


def _lost(log: LogFolder, index: int) -> LedgerDamagedError:
    return LedgerDamagedError(
        f"the bundle of rows {index} and up is not in {log.root}, and no signed row says that it"
        " was pruned; nothing was removed, run `audit verify`"
    )
