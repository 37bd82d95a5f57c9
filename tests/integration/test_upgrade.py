"""Two releases side by side: a newer worker beside one of today, and today's readers of both."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from audit.ledger.keys import LedgerKeys, write_new
from audit.row import COMPLETED, SCHEMA_VERSION, STARTED
from tests.integration.flower import LOGIN, SHIPPED, Flower
from tests.integration.keeping import LEASE, keeper
from tests.integration.prepared import run_celery
from tests.integration.stack import ROOT, Stack, caller
from tests.support import TENANT, wait_until

CALLS = 30
#: What rows of ``newer_app`` say; that module is for a worker, and changes the process it is in.
NEWER = 2
#: A kind of rows that no release has yet.
UNKNOWN = "skill.invoked_paused"


@dataclass
class Mixed:
    """One queue and one memory, an old and a new worker; Flower of today."""

    stack: Stack
    flower: Flower
    keys: Path
    #: An invocation of the newer worker, and one of today's.
    newer: str
    older: str

    def audit(self, *words: str) -> str:
        ledger = {
            "AUDIT_LEDGER_DIR": str(self.stack.directory / "ledger"),
            "AUDIT_LEDGER_KEYS": str(self.keys),
        }
        done = run_celery(
            *("-A", "tests.integration.worker_app", "audit", *words),
            env={**os.environ, **self.stack.environ, **ledger, "PYTHONPATH": str(ROOT)},
            cwd=self.stack.directory,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    """Calls that both workers share, and a row of a kind that nobody knows."""
    directory = tmp_path_factory.mktemp("upgrade")
    keys = directory / "ledger.keys"
    write_new(LedgerKeys.generate("skill-host.invalid"), keys)
    stack = Stack(directory)
    try:
        lease = {"AUDIT_LEASE_SECONDS": str(LEASE)}
        stack.worker("prefork", 1, environ=lease)
        stack.worker("prefork", 1, app="tests.integration.newer_app", environ=lease)
        wait_until(lambda: share(stack), 60)
        by_schema = {row.schema: row.request_id for row in stack.rows(kind=STARTED)}
        put_unknown_kind(stack)
        at = tmp_path_factory.mktemp("upgrade-flower")
        flower = Flower(stack, at, f"--conf={SHIPPED}", FLOWER_BASIC_AUTH=LOGIN)
        try:
            yield Mixed(stack, flower, keys, by_schema[NEWER], by_schema[SCHEMA_VERSION])
        finally:
            flower.end()
    finally:
        stack.close(check=False)  # the published schema knows nothing of tomorrow


def share(stack: Stack) -> bool:
    """Call until both workers have had some."""
    with caller():
        for result in [stack.skills.echo.delay(number) for number in range(CALLS)]:
            result.get(timeout=30)
    return {row.schema for row in stack.rows(kind=STARTED)} == {SCHEMA_VERSION, NEWER}


def put_unknown_kind(stack: Stack) -> None:
    (row, *_) = stack.rows(kind=STARTED)
    document = {**row.as_dict(), "kind": UNKNOWN, "schema": NEWER}
    document["payload"] = {**row.payload, "request_id": "01M8MNNZ00SBQ3NSC3V3S5FMH4"}
    stored = json.dumps(document, sort_keys=True, separators=(",", ":"))
    client = redis.Redis.from_url(stack.memory_url)
    client.xadd(f"audit:{{{row.tenant_id}}}:rows", {"row": stored})


def test_both_leave_pairs_side_by_side(mixed: Mixed) -> None:
    """Each invocation has its two rows, both of the release that ran it, and none is open."""
    pairs: dict[str, list[tuple[str, int]]] = {}
    for row in mixed.stack.rows():
        if row.kind != UNKNOWN:
            pairs.setdefault(row.request_id, []).append((row.kind, row.schema))
    assert len(pairs) >= CALLS
    for pair in pairs.values():
        assert [kind for kind, _ in pair] == [STARTED, COMPLETED]
        assert len({schema for _, schema in pair}) == 1
    assert not list(mixed.stack.memory.running())


def test_the_command_line_reads_what_it_does_not_know(mixed: Mixed) -> None:
    """``list`` and ``show`` give newer rows as they were stored, unknown keys and kinds too."""
    listed = [
        json.loads(line) for line in mixed.audit("list", "--json", "--limit", "1000").splitlines()
    ]
    text = mixed.audit("show", mixed.newer, "--json")
    assert any(UNKNOWN in json.dumps(line) for line in listed)
    assert mixed.newer in json.dumps(listed)
    for fact in ('"schema"', "cost_cents", "eu-central"):
        assert fact in text


def test_they_are_sealed_verified_and_exported(mixed: Mixed) -> None:
    """Byte for byte: RIGHT, and the pack holds them and passes its own program."""
    mixed.audit("seal")
    assert "RIGHT" in mixed.audit("verify")
    pack = mixed.stack.directory / f"{uuid4()}.zip"
    mixed.audit("export", "--tenant", TENANT, "--since", "1h", "-o", str(pack))
    inside = b"".join(zipfile.ZipFile(pack).read(name) for name in zipfile.ZipFile(pack).namelist())
    assert b'"cost_cents":7' in inside
    assert UNKNOWN.encode() in inside
    mixed.audit("verify-pack", str(pack), "--key", mixed_key(mixed))


def mixed_key(mixed: Mixed) -> str:
    return LedgerKeys.load(str(mixed.keys), "skill-host.invalid").verifiers[0].to_text()


def test_the_pages_show_them(mixed: Mixed) -> None:
    """Overview, list and invocation answer 200 with invocations of both releases."""
    assert mixed.flower.ask("/audit").status == 200
    listed = mixed.flower.ask("/audit/list")
    assert listed.status == 200
    for request_id in (mixed.newer, mixed.older):
        page = mixed.flower.ask(f"/audit/invocation/{request_id}")
        assert page.status == 200
        assert "success" in page.text


def test_todays_keeper_closes_what_a_newer_worker_left_open(mixed: Mixed) -> None:
    """The newer worker is killed under a skill: abandoned, in a row of the keeper's release."""
    stack = mixed.stack
    old, new = stack.workers
    old.stop()
    with caller():
        task = stack.skills.hold.delay(str(stack.directory / "never")).id
    wait_until(lambda: stack.rows(task_id=task), 30)
    new.kill()
    with keeper(stack):
        started, completed = stack.pair(task)
    assert (started.schema, completed.schema) == (NEWER, SCHEMA_VERSION)
    assert completed.meta["reason"] == "abandoned"
