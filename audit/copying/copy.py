"""Copying a memory: tenant by tenant, each by itself, and the ledger at the end if it goes along.

What is guaranteed: source and target are two memories, whatever their URLs say; what is wrong with
one tenant is told and keeps no other from being copied; the source is only read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from ulid import ULID

from audit.copying.ledger import LedgerCopy
from audit.copying.sealed import Seal
from audit.copying.settled import settled_position
from audit.copying.source import SourceRows
from audit.copying.tenant import TenantCopy
from audit.errors import AuditError, CopyError, MemoryUnavailableError
from audit.ledger.archive import Archive
from audit.ledger.claims import Trust
from audit.ledger.folder import LedgerFolder
from audit.ledger.sources import read_tenants
from audit.memory.base import AuditMemory

#: Seconds a copy leads in the target at most, to see whether it does in the source: more than two
#: calls may take.
_LED_FOR: Final = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Copied:
    """What became of one tenant.

    Attributes:
        tenant_id: whose rows.
        rows: how many of them the target has now that are the source's.
        new: how many of them this run has added.
        sealed: how many were held against the ledger; ``None``: there is none.
        fault: why not all is copied and right; ``None``: it is.
    """

    tenant_id: str
    rows: int
    new: int
    sealed: int | None
    fault: AuditError | None = None


@dataclass(frozen=True, kw_only=True)
class Copy:
    """What to copy, and where.

    Attributes:
        source: the memory that is read.
        target: the memory that is written.
        ledger: the folder of what was sealed from the source; ``None``: nothing is held against it.
        trust: whose signatures count.
        folder: where the ledger goes, for the target; ``None``: it does not go along.
        tenant_id: of this tenant only.
        told: called after each page: tenant, rows that the target has now, the source's position.
        pause: waits so many seconds.
    """

    source: AuditMemory
    target: AuditMemory
    ledger: Path | None = None
    trust: Trust = field(default_factory=lambda: Trust(()))
    folder: Path | None = None
    tenant_id: str | None = None
    told: Callable[[str, int, str], None] = lambda tenant_id, rows, position: None
    pause: Callable[[float], None] = time.sleep

    def run(self) -> Iterator[Copied]:
        """Copy tenant after tenant, and say what became of each.

        Raises:
            CopyError: source and target are one, there is nothing to copy, or the ledger cannot go
                along; what is wrong with a tenant does not end the copy.
            AuditMemoryError: a memory does not answer, or is not fit.
        """
        self.target.check()
        tenants = self._tenants()
        self._insist_on_two()
        with ExitStack() as stack:
            along = self._along()
            if along is not None:
                stack.enter_context(along.begun())
            faulty = False
            for tenant_id in tenants:
                copied = self._one(tenant_id, along)
                faulty = faulty or copied.fault is not None
                yield copied
            if along is not None and not faulty:
                along.finish()

    # --- inside -------------------------------------------------------------------------------

    def _tenants(self) -> list[str]:
        """Whose rows there are, or were once; what was trimmed of them is in the ledger."""
        found = sorted({*self.source.tenants(), *read_tenants(self.ledger).values()})
        tenants = [tenant for tenant in found if self.tenant_id in (None, tenant)]
        if not tenants:
            raise CopyError(f"there is nothing to copy: {self.source.name} has no such rows")
        return tenants

    def _along(self) -> LedgerCopy | None:
        if self.ledger is None or self.folder is None:
            return None
        return LedgerCopy(self.ledger, self.folder, self.source, self.target)

    def _one(self, tenant_id: str, along: LedgerCopy | None) -> Copied:
        copy: TenantCopy | None = None
        seal: Seal | None = None
        fault: AuditError | None = None
        try:
            seal = self._seal(tenant_id)
            copy = self._copy_of(tenant_id, seal, along)
            copy.run()
        except AuditError as error:
            self._insist_on_answers(tenant_id, error)
            fault = error
        return Copied(
            tenant_id=tenant_id,
            rows=copy.rows if copy else 0,
            new=copy.new if copy else 0,
            sealed=seal.size if seal else None,
            fault=fault,
        )

    def _insist_on_answers(self, tenant_id: str, error: AuditError) -> None:
        """Where nothing answers no tenant is at fault. The source is only read, as it may be."""
        if isinstance(error, MemoryUnavailableError):
            self.source.last_position(tenant_id)
        self.target.check()

    def _seal(self, tenant_id: str) -> Seal | None:
        if self.ledger is None:
            return None
        seal = Seal.of(tenant_id, self.ledger, self.trust)
        if seal.note is None and self.source.sealed(tenant_id) is not None:
            raise CopyError("the source has a checkpoint of it, and the ledger knows of none")
        if self.source.trimmed(tenant_id) is not None:
            seal.insist_on_all()
        return seal

    def _copy_of(self, tenant_id: str, seal: Seal | None, along: LedgerCopy | None) -> TenantCopy:
        archive = None if self.ledger is None else Archive(LedgerFolder(self.ledger))
        # Read behind the seal, so that no sealed row lies beyond it.
        last = settled_position(self.source, tenant_id, "source", self.pause)
        return TenantCopy(
            SourceRows(self.source, tenant_id, archive),
            self.target,
            tenant_id,
            last=last,
            seal=seal,
            told=partial(self.told, tenant_id),
            positions=along.positions(tenant_id, seal) if along and seal else None,
            pause=self.pause,
        )

    def _insist_on_two(self) -> None:
        """Two URLs may name one memory: who leads in the target must not lead in the source.

        In a role of its own: in any other, somebody else could lead in the source.
        """
        role = f"copy-{ULID()}"
        self.target.lead(role, role, _LED_FOR)
        try:
            same = self.source.is_led(role)
        finally:
            self.target.give_up(role, role)
        if same:
            raise CopyError(f"source and target are one memory: {self.source.name}")
