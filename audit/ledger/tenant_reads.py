"""Reading a memory tenant by tenant: one that is at fault is told apart from a memory that is down.

What is guaranteed: where the memory says that a tenant's keys are not what they should be, or
answers while it fails for that tenant a second time, the error is a
:class:`audit.errors.MemoryDamagedError`, and whoever serves all tenants goes on with the next. One
timeout that passes accuses nobody. Where nothing answers, no tenant is at fault: the error is then
the memory's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from audit.errors import MemoryDamagedError, MemoryUnavailableError
from audit.memory.entry import Entry

_Found = TypeVar("_Found")


class ReadMemory(Protocol):
    """What the ledger reads of a memory."""

    def check(self) -> None: ...

    def tenants(self) -> list[str]: ...

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]: ...

    def last_position(self, tenant_id: str) -> str | None: ...

    def sealed(self, tenant_id: str) -> bytes | None: ...

    def sealed_position(self, tenant_id: str) -> str | None: ...

    def trimmed(self, tenant_id: str) -> str | None: ...

    def leases(self, workers: Collection[str]) -> set[str]: ...


class SealingMemory(ReadMemory, Protocol):
    """What a sealer asks of a memory."""

    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None = None
    ) -> bool: ...


class TenantReads:
    """A memory, read with that distinction. Nothing in it writes.

    Args:
        memory: the memory.
    """

    def __init__(self, memory: ReadMemory) -> None:
        self._read = memory

    def check(self) -> None:
        self._read.check()

    def tenants(self) -> list[str]:
        return self._read.tenants()

    def leases(self, workers: Collection[str]) -> set[str]:
        return self._read.leases(workers)

    def entries(self, tenant_id: str, after: str | None, limit: int) -> list[Entry]:
        return self._of(tenant_id, lambda: self._read.entries(tenant_id, after, limit))

    def last_position(self, tenant_id: str) -> str | None:
        return self._of(tenant_id, lambda: self._read.last_position(tenant_id))

    def sealed(self, tenant_id: str) -> bytes | None:
        return self._of(tenant_id, lambda: self._read.sealed(tenant_id))

    def sealed_position(self, tenant_id: str) -> str | None:
        return self._of(tenant_id, lambda: self._read.sealed_position(tenant_id))

    def trimmed(self, tenant_id: str) -> str | None:
        return self._of(tenant_id, lambda: self._read.trimmed(tenant_id))

    def _of(self, tenant_id: str, ask: Callable[[], _Found]) -> _Found:
        """The answer to a question about one tenant."""
        try:
            return ask()
        except MemoryDamagedError:
            raise
        except MemoryUnavailableError:
            self.check()
        try:
            return ask()
        except MemoryDamagedError:
            raise
        except MemoryUnavailableError as error:
            self.check()
            raise MemoryDamagedError(
                f"the memory answers, but not for {tenant_id}: {error}", tenant_id=tenant_id
            ) from error


class SealerReads(TenantReads):
    """The same for a sealer, which also swaps checkpoints. A swap that fails accuses no tenant.

    Args:
        memory: the memory.
    """

    def __init__(self, memory: SealingMemory) -> None:
        super().__init__(memory)
        self._swapped = memory

    def swap_sealed(
        self, tenant_id: str, old: bytes | None, new: bytes, position: str | None = None
    ) -> bool:
        return self._swapped.swap_sealed(tenant_id, old, new, position)
