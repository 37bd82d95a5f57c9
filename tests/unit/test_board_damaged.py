"""audit/board where the keys of single tenants are damaged: the rest is shown, and who is not."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pytest

from audit.board.beside import MOST
from audit.board.invocation import invocation
from audit.board.listing import listing
from audit.board.overview import overview
from audit.errors import MemoryDamagedError
from audit.memory.base import RowFilter
from audit.memory.page import Open, Page
from audit.testing import InMemory
from tests.pages import ALL, OTHER, invoke, tenant
from tests.support import TENANT, make_identity, started

NOW = datetime.now(UTC)


class Damaged(InMemory):
    """The keys of these tenants are damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()
        self.unsealed: set[str] = set()

    def _insist(self, tenant_id: str | None, without: Collection[str] = ()) -> None:
        asked = self.damaged if tenant_id is None else self.damaged & {tenant_id}
        if bad := sorted(asked - set(without)):
            raise MemoryDamagedError(f"damaged: {bad[0]}", tenant_id=bad[0])

    def page(self, wanted: RowFilter, *, without: Collection[str] = (), **bounds: Any) -> Page:
        self._insist(wanted.tenant_id, without)
        return super().page(wanted, without=without, **bounds)

    def open_page(self, tenant_id: str | None, most: int, *, without: Collection[str] = ()) -> Open:
        self._insist(tenant_id, without)
        return super().open_page(tenant_id, most, without=without)

    def sealed(self, tenant_id: str) -> bytes | None:
        if tenant_id in self.unsealed:
            raise MemoryDamagedError(f"damaged: {tenant_id}", tenant_id=tenant_id)
        return super().sealed(tenant_id)


@pytest.fixture
def memory() -> Damaged:
    """Both tenants have an invocation that ended and one that runs; one of them is damaged."""
    memory = Damaged()
    for tenant_id in (TENANT, OTHER):
        invoke(memory, tenant_id=tenant_id)
        memory.emit(started(make_identity(tenant_id=tenant_id, request_id=f"open-{tenant_id}")))
    memory.damaged = {TENANT}
    return memory


def test_the_overview_shows_the_other_tenants(memory: Damaged) -> None:
    """What is theirs, and whose rows are missing; of the damaged one alone it is an error."""
    view = overview(memory, NOW, ledger=False)
    assert [line.row.tenant_id for line in view.running] == [OTHER]
    assert (view.running_total, view.looked, view.unread) == (1, 3, (TENANT,))
    assert overview(memory, NOW, ledger=False, tenant_id=OTHER).unread == ()
    with pytest.raises(MemoryDamagedError):
        overview(memory, NOW, ledger=False, tenant_id=TENANT)


def test_what_is_sealed_may_be_what_is_damaged(memory: Damaged) -> None:
    """Then that tenant is left out as well: its rows are not shown as if all were well."""
    memory.damaged, memory.unsealed = set(), {TENANT}
    assert overview(memory, NOW, ledger=True).unread == (TENANT,)


def test_the_list_shows_the_other_tenants(memory: Damaged) -> None:
    """The same holds for the list."""
    found = listing(memory, ALL)
    assert {line.tenant_id for line in found.lines} == {OTHER}
    assert found.unread == (TENANT,)
    with pytest.raises(MemoryDamagedError):
        listing(memory, RowFilter(tenant_id=TENANT))


def test_an_invocation_of_another_tenant_is_shown(memory: Damaged) -> None:
    """One that is not found elsewhere may be the damaged tenant's: an error, and not a 404."""
    view = invocation(memory, f"open-{OTHER}", NOW, ledger=False)
    assert view is not None
    assert view.tenant_id == OTHER
    for request_id in (f"open-{TENANT}", "none"):
        with pytest.raises(MemoryDamagedError):
            invocation(memory, request_id, NOW, ledger=False)


def test_more_damage_than_that_is_the_memorys(memory: Damaged) -> None:
    """A page is not read again for each of a thousand tenants."""
    memory.damaged = {tenant(number) for number in range(MOST)}
    assert len(listing(memory, ALL).unread) == MOST
    memory.damaged |= {TENANT}
    with pytest.raises(MemoryDamagedError):
        listing(memory, ALL)


def test_damage_of_nobody_is_an_error(memory: Damaged) -> None:
    """The list of tenants itself: there is nobody to leave out."""
    memory.damaged = {""}
    with pytest.raises(MemoryDamagedError):
        overview(memory, NOW, ledger=False)
