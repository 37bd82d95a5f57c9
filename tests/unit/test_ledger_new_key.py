"""audit/ledger/sealer.py: a new key takes over every log, and only then may the old one go."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.row import NIL_TENANT
from audit.testing import InMemory
from tests.sealing import KEYS, OTHER, PREFIX, Rows, files, log_of, make, meta_of, seal, verified
from tests.support import TENANT, make_identity, refused

pytestmark = pytest.mark.usefixtures("no_flush")


def test_a_new_key_signs_every_log_and_the_old_one_may_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Idle logs too, of the same tree, and the meta log; once that is said, the old line may be
    taken out, and whoever knows the new key alone can verify all of it."""
    memory, tenants = InMemory(), [TENANT, OTHER]
    for tenant_id in tenants:
        memory.emit(refused(make_identity(tenant_id=tenant_id)))
    assert not seal(memory, tmp_path).old_keys_may_go
    rotated = KEYS.rotated()
    sealer = make(memory, tmp_path, load_keys=lambda: rotated)
    said: list[bool] = []
    while not any(said):
        did = sealer.round(lambda: False)
        assert did is not None
        said.append(did.old_keys_may_go)
    assert len(said) == 3  # one log each
    assert caplog.text.count("the old key may go") == 1
    only = LedgerKeys(rotated.signers[:1], (), KEYS.secret)
    for tenant_id in [*tenants, NIL_TENANT, META]:
        name = META if tenant_id == META else log_of(tenant_id)
        note = memory.sealed(tenant_id)
        assert LedgerFolder(tmp_path).log(name).checkpoint() == note
        assert verified(note, f"{PREFIX}/{name}", only).size >= 1
        assert tenant_id == META or note in meta_of(memory, tmp_path)
    before = files(tmp_path)
    assert seal(memory, tmp_path, load_keys=lambda: rotated).old_keys_may_go
    assert files(tmp_path) == before
    memory.emit(refused(make_identity()))
    assert seal(memory, tmp_path, load_keys=lambda: only).rows == 1


def test_an_idle_meta_log_is_signed_anew_by_itself(tmp_path: Path) -> None:
    """Where every log has the new signature already, as after a crash behind them."""
    memory = Rows()
    memory.counts[TENANT] = 5
    rotated = KEYS.rotated()
    seal(memory, tmp_path, load_keys=lambda: rotated)
    older = verified(memory.sealed(META), f"{PREFIX}/{META}", rotated)
    note = older.sign(*KEYS.signers_of(f"{PREFIX}/{META}")).to_bytes()
    memory._sealed[META] = note
    LedgerFolder(tmp_path).log(META).put_checkpoint(note)
    assert seal(memory, tmp_path, load_keys=lambda: rotated).old_keys_may_go
    only = LedgerKeys(rotated.signers[:1], (), KEYS.secret)
    assert verified(memory.sealed(META), f"{PREFIX}/{META}", only) == older


@pytest.mark.parametrize("role", [OTHER, META])
def test_the_old_key_stays_while_a_log_is_damaged(role: str, tmp_path: Path) -> None:
    """It has not got the new signature."""
    memory = Rows(**{OTHER: 5})
    memory.counts[TENANT] = 5
    seal(memory, tmp_path)
    name = META if role == META else log_of(role)
    shutil.rmtree(tmp_path / name / "tile")
    memory.emit = lambda row, once=None: None  # type: ignore[method-assign, assignment, misc]
    rotated = KEYS.rotated()
    did = seal(memory, tmp_path, load_keys=lambda: rotated)
    assert (list(did.faults), did.old_keys_may_go) == ([name], False)


def test_the_old_key_stays_while_a_log_of_the_folder_is_unknown(tmp_path: Path) -> None:
    """The memory does not have it, so nobody has signed it anew."""
    memory = Rows(**{OTHER: 5})
    memory.counts[TENANT] = 5
    seal(memory, tmp_path)
    memory.counts[OTHER] = 0
    memory.emit = lambda row, once=None: None  # type: ignore[method-assign, assignment, misc]
    rotated = KEYS.rotated()
    assert not seal(memory, tmp_path, load_keys=lambda: rotated).old_keys_may_go
