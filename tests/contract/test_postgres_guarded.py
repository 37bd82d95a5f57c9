"""The contract over PostgreSQL with row security and partitions, as a writer who is no superuser.

A part of it; ``AUDIT_TEST_POSTGRES=1`` has the whole suite run over that.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from audit.memory import AuditMemory
from tests.contract.test_memory import (  # noqa: F401
    test_a_rival_completion_is_kept_as_late_once,
    test_a_second_different_started_row_is_refused,
    test_leading_is_handed_over_and_runs_out,
    test_of_many_rivals_one_starts_the_invocation,
    test_rows_of_other_tenants_never_appear,
)
from tests.contract.test_memory_ledger import (  # noqa: F401
    test_an_open_invocation_is_never_trimmed,
    test_positions_go_on_when_all_is_trimmed,
)
from tests.support import checked_memory


@pytest.fixture
def memory(guarded_url: str) -> Iterator[AuditMemory]:
    with checked_memory(guarded_url) as made:
        yield made
