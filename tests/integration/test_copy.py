"""`audit copy` between real stores, any to any: killed and resumed, with a ledger."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from audit.cli import audit
from audit.embedded import EmbeddedServer
from audit.ledger.keys import write_new
from audit.memory import AuditMemory, open_memory
from audit.memory.base import Once, Stored, message_of
from audit.row import LATE, Reason
from audit.system_rows import audit_key_rotated, audit_pruned
from demo.postgres import PostgresServer
from tests.ledger_writer import just_now, rows_of
from tests.sealing import KEYS, NEIGHBOUR, PREFIX, check, raw, seal
from tests.support import (
    TENANT,
    checked_memory,
    completed,
    make_ending,
    make_identity,
    now,
    refused,
    started,
    wait_until,
)

ROOT = Path(__file__).parents[2]
#: Texts that a store could trip over.
STRANGE = 'ValueError: NUL \x00, "kind":"skill.invoked_late", \u2028, \U0001d11e, \\ and an end'
ULID_OF = "01KB8Z5T3MZJ9Y2V4Q6R8S0T{}".format


@pytest.fixture(scope="module")
def two_servers() -> Iterator[tuple[str, str]]:
    """One server, two databases: two memories."""
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        url, _, _ = server.url.partition("?")
        yield server.url, server.url.replace(url, f"{url.rpartition('/')[0]}/1")


@pytest.fixture
def urls(
    two_servers: tuple[str, str], postgres: PostgresServer, postgres_url: str, sqlite_url: str
) -> dict[str, str]:
    redis.Redis.from_url(two_servers[0]).flushall()
    return {
        "redis": two_servers[0],
        "another redis": two_servers[1],
        "postgres": postgres_url,
        "sqlite": sqlite_url,
    }


def run(*args: str) -> Result:
    obj: Any = SimpleNamespace(app=SimpleNamespace(conf={}), no_color=False)
    return CliRunner().invoke(audit, args, obj=obj)


def process(*args: str, **options: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own, without Celery's start."""
    code = (
        "import sys; from types import SimpleNamespace as N; from audit.cli import audit;"
        "audit(sys.argv[1:], obj=N(app=N(conf={}), no_color=False))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(command, cwd=ROOT, env=environ, text=True, **options)


def write_all_kinds(memory: AuditMemory) -> None:
    """Every kind of row, and what a store does to them."""
    one, dead, still_open = make_identity(), make_identity(), make_identity(tenant_id=NEIGHBOUR)
    once = Once(token="a message", seconds=600)
    memory.emit(started(make_identity()), once)
    again = make_identity(worker="worker-2")
    assert memory.emit(started(again), once) is Stored.REPLAYED
    memory.emit(started(one))
    memory.emit(started(still_open))
    memory.emit(completed(one, make_ending(Reason.RAISED, STRANGE)))
    memory.emit(completed(again))
    assert memory.emit(completed(one, duration_ms=99)) is Stored.LATE
    assert memory.emit(completed(one, duration_ms=100)) is Stored.LATE
    memory.emit(started(dead))
    memory.emit(completed(dead, make_ending(Reason.WORKER_LOST)))
    memory.emit(refused(make_identity(skill_id="näme.\U0001d11e")))
    memory.emit(
        audit_key_rotated(
            ULID_OF("01"), new_key=KEYS.verifiers[0].to_text(), old_key=None, ts=now()
        )
    )
    memory.emit(
        audit_pruned(
            ULID_OF("02"), TENANT, before=now(), first_index=0, rows=1, root="0" * 64, note="n",
            ts=now(),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("of", "to"),
    [
        ("redis", "postgres"),
        ("postgres", "sqlite"),
        ("sqlite", "another redis"),
    ],
)
def test_rows_go_from_any_memory_to_any(of: str, to: str, urls: dict[str, str]) -> None:
    """The same bytes in the same order, the same state: open, closed, late, refused, deaths."""
    with checked_memory(urls[of]) as source, checked_memory(urls[to]) as target:
        write_all_kinds(source)
        did = run("copy", "--from", urls[of], "--to", urls[to])
        assert (did.exit_code, did.stderr) == (0, "")
        assert did.stdout.count("not verified against a ledger") == len(source.tenants()) == 3
        assert target.tenants() == source.tenants()
        for tenant in source.tenants():
            assert raw(target, tenant) == raw(source, tenant)
        assert [row.to_bytes() for row in target.running()] == [
            row.to_bytes() for row in source.running()
        ]
        lost = next(row for row in source.rows() if row.meta["reason"] == Reason.WORKER_LOST)
        assert target.deaths(TENANT, message_of(lost)) == 1
        for row in list(source.rows(TENANT)):  # what is known of each goes on
            if row.kind != LATE:
                assert target.emit(row) is Stored.REPEATED
        again = run("copy", "--from", urls[of], "--to", urls[to], "--json")
        lines = [json.loads(line) for line in again.stdout.splitlines()]
        assert [line["type"] for line in lines] == ["tenant"] * 3 + ["verdict"]
        assert (lines[-1]["verdict"], lines[-1]["new"]) == ("copied", 0)


def test_a_killed_copy_is_done_again(urls: dict[str, str]) -> None:
    """SIGKILL in the middle, then a second run: the target is what one run would have made."""
    rows, of, to = just_now(rows_of(TENANT, 700, Random(1))), "redis", "postgres"
    with closing(open_memory(urls[of])) as source, closing(open_memory(urls[to])) as target:
        for row in rows:
            source.emit(row)
        with process("copy", "--from", urls[of], "--to", urls[to]) as copying:
            wait_until(lambda: len(target.entries(TENANT, None, 60)) > 50, timeout=30)
            copying.send_signal(signal.SIGKILL)
        assert copying.returncode == -signal.SIGKILL
        first = len(raw(target))
        assert 50 < first < len(rows)
        did = run("copy", "--from", urls[of], "--to", urls[to], "--json")
        assert did.exit_code == 0, did.stderr
        assert json.loads(did.stdout.splitlines()[-1])["new"] == len(rows) - first
        assert raw(target) == raw(source)


def test_a_diverged_target_is_bad_news(urls: dict[str, str]) -> None:
    """Exit 1 and the tenant's name; nothing is written of it, and no password is shown."""
    with checked_memory(urls["redis"]) as source, checked_memory(urls["sqlite"]) as target:
        write_all_kinds(source)
        target.emit(refused(make_identity()))
        before = raw(target)
        did = run("copy", "--from", urls["redis"], "--to", urls["sqlite"])
        assert did.exit_code == 1
        assert f"NOT COPIED {TENANT}: the target's row 0 at " in did.stdout
        assert raw(target) == before
        assert raw(target, NEIGHBOUR) == raw(source, NEIGHBOUR)


def test_one_store_under_two_urls_is_one_memory(urls: dict[str, str], tmp_path: Path) -> None:
    """A link to the same file: refused, and nothing is written."""
    (tmp_path / "link.db").symlink_to(tmp_path / "audit.db")
    with checked_memory(urls["sqlite"]) as source:
        source.emit(refused(make_identity()))
        did = run("copy", "--from", urls["sqlite"], "--to", f"sqlite:///{tmp_path}/link.db")
        assert did.exit_code == 1
        assert "are one memory" in did.stderr
        assert len(raw(source)) == 1


def test_wrong_usage(urls: dict[str, str], tmp_path: Path) -> None:
    """Exit 2: no memory of that name, a ledger that goes along without one, or with one tenant."""
    to = ("--to", urls["sqlite"])
    assert run("copy").exit_code == 2
    assert run("copy", "--to", "mysql://user:s3cr3t@host/db").exit_code == 2
    assert "s3cr3t" not in run("copy", "--to", "mysql://user:s3cr3t@host/db").stderr
    assert run("copy", *to, "--to-ledger", str(tmp_path / "new")).exit_code == 2
    both = ("--ledger", str(tmp_path), "--to-ledger", str(tmp_path / "new"), "--tenant", TENANT)
    refusal = run("copy", *to, *both)
    assert (refusal.exit_code, "goes along whole" in refusal.stderr) == (2, True)


# --- the ledger -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("of", "to"), [("redis", "postgres"), ("postgres", "sqlite")])
def test_a_ledger_goes_along(
    of: str, to: str, urls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trimmed and sealed further: the target verifies, and its sealer goes on with the same log."""
    old, new = tmp_path / "old", tmp_path / "new"
    write_new(KEYS, tmp_path / "keys")
    monkeypatch.setenv("AUDIT_LEDGER_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("AUDIT_LEDGER_ORIGIN", PREFIX)
    with (
        closing(open_memory(urls[of], timeout=10)) as source,
        closing(open_memory(urls[to], timeout=10)) as target,
    ):
        for row in just_now(rows_of(TENANT, 280, Random(1))):
            source.emit(row)
        write_all_kinds(source)
        seal(source, old)
        whole = raw(source)
        assert source.trim(TENANT, source.entries(TENANT, None, 300)[270].position) > 200
        source.emit(refused(make_identity()))
        args = ("copy", "--from", urls[of], "--to", urls[to], "--ledger", str(old))
        did = run(*args, "--to-ledger", str(new))
        assert (did.exit_code, did.stderr) == (0, "")
        assert f"{len(whole)} of them are as they were sealed" in did.stdout
        assert raw(target)[: len(whole)] == whole
        assert list(check(source, old).findings()) == []
        for row in just_now(rows_of(TENANT, 300, Random(2))):
            target.emit(row)
        sealed = seal(target, new)
        assert (sealed.faults, sealed.rows) == ({}, 301)
        assert list(check(target, new).findings()) == []
        monkeypatch.setenv("AUDIT_LEDGER_DIR", str(new))
        verified = run("--memory", urls[to], "verify")
        assert (verified.exit_code, "findings: 0" in verified.stdout) == (0, True)


# --- a terminal -----------------------------------------------------------------------------------


def test_a_terminal_gets_a_bar(urls: dict[str, str]) -> None:
    """On standard error, where that is one; standard output has the lines alone."""
    with checked_memory(urls["redis"]) as source:
        for row in just_now(rows_of(TENANT, 20, Random(1))):
            source.emit(row)
    controller, terminal = pty.openpty()
    with process(
        "copy", "--from", urls["redis"], "--to", urls["sqlite"],
        stdout=subprocess.PIPE, stderr=terminal,
    ) as copying:  # fmt: skip
        told, _ = copying.communicate(timeout=30)
    os.close(terminal)
    shown = os.read(controller, 100_000).decode()
    os.close(controller)
    assert copying.returncode == 0
    assert "20 rows" in shown
    assert TENANT in shown
    assert told.splitlines()[0].startswith(f"{TENANT}: rows 20, new 20;")
