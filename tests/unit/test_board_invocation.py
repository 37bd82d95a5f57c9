"""audit/board/invocation.py: one invocation, its parent, children and attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from audit.board.around import DEPTH
from audit.board.invocation import InvocationView, State, invocation
from audit.board.line import InvocationLine, LineKind
from audit.board.standing import ProofState
from audit.errors import MemoryUnavailableError
from audit.row import NIL_TENANT, Ending, Identity, Reason, Refusal, timestamp
from audit.system_rows import audit_key_rotated
from audit.testing import InMemory
from tests.pages import OTHER, Sealed, seal
from tests.support import HASH, TENANT, completed, make_identity, refused, started

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def start(memory: InMemory, **overrides: Any) -> Identity:
    identity = make_identity(**{"task_id": None, **overrides})
    memory.emit(started(identity, ts=timestamp(NOW - timedelta(seconds=90))))
    return identity


def run(memory: InMemory, **overrides: Any) -> Identity:
    identity = start(memory, **overrides)
    memory.emit(completed(identity))
    return identity


def see(memory: InMemory, identity: Identity, **parts: Any) -> InvocationView:
    view = invocation(memory, identity.request_id, NOW, **{"ledger": False, **parts})
    assert view is not None
    return view


def shape(lines: tuple[InvocationLine, ...]) -> list[Any]:
    """Ids, nested as the lines are."""
    return [
        (line.request_id, shape(line.children)) if line.children else line.request_id
        for line in lines
    ]


@pytest.fixture
def memory() -> InMemory:
    return InMemory()


def test_an_unknown_invocation_is_none(memory: InMemory) -> None:
    """Nothing is made up of an id that the memory never had, nor of one of another tenant."""
    identity = run(memory)
    assert invocation(memory, "01NOWHERE", NOW, ledger=False) is None
    assert invocation(memory, identity.request_id, NOW, ledger=False, tenant_id=OTHER) is None


def test_a_running_one_has_an_age(memory: InMemory) -> None:
    """While it runs, its age and its lease are known; once it is closed, neither matters."""
    identity = start(memory)
    view = see(memory, identity)
    assert (view.state, view.age_seconds, view.has_lease) == (State.RUNNING, 90.0, False)
    memory.hold_lease("worker-1", 60)
    assert see(memory, identity).has_lease
    memory.emit(completed(identity))
    view = see(memory, identity)
    assert (view.state, view.age_seconds, view.has_lease) == (State.CLOSED, None, None)


def test_all_rows_of_an_invocation_are_there(memory: InMemory) -> None:
    """Started, completed and late rows, and the very bytes that are stored."""
    identity = run(memory)
    memory.emit(completed(identity, Ending(reason=Reason.IGNORED)))
    view = see(memory, identity)
    assert view.started is not None
    assert view.completed is not None
    assert [row.meta["reason"] for row in view.late] == ["ignored"]
    assert view.stored == tuple(row.to_bytes() for row in memory.rows())
    assert view.line is not None
    assert view.line.kind is LineKind.CLOSED


def test_what_never_ran_has_its_own_state(memory: InMemory) -> None:
    """A refused one is refused, a row of the trail itself is of no invocation."""
    row = refused(make_identity(), Refusal.POISON)
    memory.emit(row)
    view = invocation(memory, row.request_id, NOW, ledger=False)
    assert view is not None
    assert (view.state, view.others) == (State.REFUSED, (row,))
    memory.emit(audit_key_rotated("01SYSTEM", new_key="k", old_key=None, ts=timestamp(NOW)))
    view = invocation(memory, "01SYSTEM", NOW, ledger=False)
    assert view is not None
    assert (view.state, view.tenant_id) == (State.SYSTEM, NIL_TENANT)


def test_children_are_a_tree(memory: InMemory) -> None:
    """What it published, what that published, and what was refused, each below its parent."""
    root = start(memory)
    run(memory)
    first = start(memory, parent_request_id=root.request_id)
    second = run(memory, parent_request_id=root.request_id)
    below = run(memory, parent_request_id=first.request_id)
    barred = make_identity(parent_request_id=second.request_id)
    memory.emit(refused(barred, Refusal.POISON))
    memory.emit(completed(first))
    run(memory, parent_request_id="01ELSE")
    view = see(memory, root)
    assert shape(view.children) == [
        (first.request_id, [below.request_id]),
        (second.request_id, [barred.request_id]),
    ]
    assert view.children[0].kind is LineKind.CLOSED
    assert view.complete
    view = see(memory, below)
    assert view.parent is not None
    assert view.parent.request_id == first.request_id
    assert view.parent.completed is not None


def test_a_forged_circle_of_parents_ends(memory: InMemory) -> None:
    """Rows may claim each other, or themselves, as parents: each stands in the tree once."""
    root = start(memory, request_id="01A", parent_request_id="01B")
    start(memory, request_id="01B", parent_request_id="01A")
    start(memory, request_id="01C", parent_request_id="01C")
    view = see(memory, root)
    assert shape(view.children) == ["01B"]
    assert view.parent is not None
    assert view.parent.request_id == "01B"


def test_a_tree_has_a_depth(memory: InMemory) -> None:
    """Beyond so many levels the tree is cut, and the view says that it is not complete."""
    chain = [start(memory)]
    for _ in range(DEPTH + 5):
        chain.append(start(memory, parent_request_id=chain[-1].request_id))
    view = see(memory, chain[0])
    depth, level = 0, view.children
    while level:
        depth, level = depth + 1, level[0].children
    assert (depth, view.complete) == (DEPTH, False)


def test_attempts_of_a_task_are_in_order(memory: InMemory) -> None:
    """Every invocation under the same task id, before and after, itself among them."""
    attempts = [run(memory, task_id="task-1", attempt=number) for number in range(3)]
    run(memory, task_id="task-2")
    barred = make_identity(task_id="task-1", attempt=3)
    memory.emit(refused(barred, Refusal.POISON))
    expected = [identity.request_id for identity in (*attempts, barred)]
    for identity in attempts:
        view = see(memory, identity)
        assert [line.request_id for line in view.attempts] == expected
        assert [line.kind for line in view.attempts] == [*[LineKind.CLOSED] * 3, LineKind.REFUSED]
        assert view.complete


def test_what_overlaps_is_joined(memory: InMemory) -> None:
    """An earlier attempt or a child that ends later still has its ending."""
    earlier = start(memory, task_id="task-1")
    later = start(memory, task_id="task-1", attempt=1)
    memory.emit(completed(earlier))
    assert [line.kind for line in see(memory, later).attempts] == [
        LineKind.CLOSED,
        LineKind.STARTED,
    ]


@pytest.mark.parametrize("before", [True, False])
def test_the_look_around_is_bounded(memory: InMemory, before: bool) -> None:
    """No more entries are looked at than asked for; what the bound may have cut is said."""
    if before:
        for _ in range(30):
            run(memory)
    root = start(memory, task_id="task-1")
    if not before:
        for _ in range(30):
            run(memory)
    child = run(memory, parent_request_id=root.request_id)
    view = see(memory, root, look=40)
    assert view.looked <= 40
    assert not view.complete
    assert shape(view.children) == ([child.request_id] if before else [])
    view = see(memory, root, look=1000)
    assert view.complete
    assert shape(view.children) == [child.request_id]


def test_another_tenants_rows_are_not_seen(memory: InMemory) -> None:
    """Neither a child nor a parent of another tenant, where only one may be seen."""
    parent = start(memory, tenant_id=OTHER)
    own = run(memory, parent_request_id=parent.request_id, task_id="task-1")
    run(memory, tenant_id=OTHER, parent_request_id=own.request_id)
    run(memory, tenant_id=OTHER, task_id="task-1")
    view = see(memory, own, tenant_id=TENANT)
    assert (view.parent, view.children, len(view.attempts)) == (None, (), 1)
    assert view.parent_request_id == parent.request_id
    assert see(memory, own).parent is not None


def test_trimmed_rows_are_said_to_be(memory: InMemory) -> None:
    """An invocation whose rows left the memory is not unknown; half of one is shown as it is."""
    gone, half = run(memory), run(memory)
    places = [str(row.position) for row in memory.rows()]
    memory.trim(TENANT, places[3])
    view = see(memory, gone)
    assert (view.state, view.line, view.stored) == (State.TRIMMED, None, ())
    view = see(memory, half)
    assert (view.state, view.started, view.complete) == (State.CLOSED, None, False)


def test_late_rows_alone_are_shown(memory: InMemory) -> None:
    """Where all but the late completions of an invocation were trimmed, those are its rows."""
    identity = run(memory)
    memory.emit(completed(identity, Ending(reason=Reason.IGNORED)))
    memory.emit(completed(identity, Ending(reason=Reason.RETURNED, result_hash=HASH[::-1])))
    memory.trim(TENANT, str(list(memory.rows())[2].position))
    view = see(memory, identity)
    assert (view.state, len(view.late), view.complete) == (State.CLOSED, 2, False)


def test_the_proof_waits_until_every_row_is_sealed() -> None:
    """Sealed is what lies before the sealed position, and nothing that lies behind it."""
    memory = Sealed()
    identity = run(memory)
    begin, end = (str(row.position) for row in memory.rows())
    assert see(memory, identity).proof is ProofState.NOT_CONFIGURED
    assert see(memory, identity, ledger=True).proof is ProofState.WAITING
    seal(memory, 1)
    assert see(memory, identity).proof is ProofState.UNKNOWN
    memory.sealed_to = begin
    assert see(memory, identity).proof is ProofState.WAITING
    memory.sealed_to = end
    assert see(memory, identity).proof is ProofState.SEALED


def test_a_memory_that_is_down_is_no_unknown_invocation(memory: InMemory) -> None:
    """Whoever shows the page learns that the memory did not answer."""
    memory.down = True
    with pytest.raises(MemoryUnavailableError):
        invocation(memory, "01X", NOW, ledger=False)
