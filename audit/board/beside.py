"""Reading beside damage: where what the memory keeps of one tenant is damaged, the rest is read.

Whoever reads so says whose rows are missing: what is shown must not look whole.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final, TypeVar

from audit.errors import MemoryDamagedError

T = TypeVar("T")

#: Tenants left out; each of them costs reading once more.
MOST: Final = 10


def beside_damage(
    read: Callable[[Set[str]], T], tenant_id: str | None
) -> tuple[T, tuple[MemoryDamagedError, ...]]:
    """What ``read`` returns, and the errors of the tenants that it was told to leave out.

    Args:
        read: takes those tenants.
        tenant_id: whose rows alone are asked for, so that nothing is left beside it; or ``None``.

    Raises:
        MemoryDamagedError: of that tenant, of none, or of more than :data:`MOST`.
        AuditMemoryError: the memory did not answer.
    """
    errors: dict[str, MemoryDamagedError] = {}
    while True:
        try:
            return read(errors.keys()), tuple(errors.values())
        except MemoryDamagedError as error:
            whose = error.tenant_id
            if whose in ("", tenant_id, *errors) or len(errors) == MOST:
                raise
            errors[whose] = error


def whose(errors: tuple[MemoryDamagedError, ...]) -> tuple[str, ...]:
    """The tenants that were left out."""
    return tuple(error.tenant_id for error in errors)
