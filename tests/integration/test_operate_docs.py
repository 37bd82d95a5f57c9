"""docs/operate.md: a backup taken as it says under load is whole, and a mixed restore is found."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from audit.embedded import EmbeddedServer
from audit.ledger.keys import LedgerKeys, write_new
from audit.memory import AuditMemory
from audit.row import COMPLETED
from audit.spool import Spool
from tests.integration.prepared import celery, run_celery
from tests.integration.stack import ROOT, Stack, caller
from tests.support import (
    TENANT,
    checked_memory,
    completed,
    make_identity,
    require,
    started,
    wait_until,
)

PAGE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
APP = "tests.integration.worker_app"
OTHER = "550e8400-e29b-41d4-a716-446655440001"
LEASE = "1.5"

#: Debian has it as a package of its own; what it is used for here, a client library does too.
VALKEY_CLI = f"""#!{sys.executable}
import sys

import redis

flag, url, *words = sys.argv[1:]
assert flag == "-u"
connection = redis.Redis.from_url(url).connection_pool.get_connection()
connection.send_command(*words)
print(connection.read_response().decode())
"""


def block(name: str) -> str:
    found = re.search(rf"<!-- operate: {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


@dataclass
class Site:
    """Where a memory, a ledger and a spool lie, and the programs that use them."""

    folder: Path
    server: EmbeddedServer
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def shell(self, script: str) -> None:
        done = subprocess.run(
            [require("bash"), "-euc", script],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def audit(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_celery(
            *("-A", APP, "audit", *words), cwd=self.folder, env=self.environ, timeout=120
        )

    def verify(self, *options: str) -> tuple[int, set[str], dict[str, Any]]:
        """Exit status, the kinds of findings, and the verdict's line."""
        done = self.audit("verify", "--json", *options)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, done.stderr
        return done.returncode, {x["kind"] for x in lines if x["type"] == "finding"}, lines[-1]

    @contextmanager
    def keeper(self) -> Iterator[None]:
        with (self.folder / "keeper.log").open("ab") as log:
            process = celery(
                *("-A", APP, "audit", "keep"),
                env=self.environ,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)


def make_site(folder: Path, server: EmbeddedServer, keys: Path, **more: str) -> Site:
    tools = folder / "bin"
    tools.mkdir(parents=True)
    if shutil.which("valkey-cli") is None:
        (tools / "valkey-cli").write_text(VALKEY_CLI)
        (tools / "valkey-cli").chmod(0o755)
    own = {name: value for name, value in os.environ.items() if not name.startswith("AUDIT_")}
    return Site(
        folder,
        server,
        {
            **own,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "AUDIT_KEEPER_LISTEN": "off",
            "AUDIT_LEASE_SECONDS": LEASE,
            "AUDIT_LEDGER_DIR": str(folder / "ledger"),
            "AUDIT_LEDGER_KEYS": str(keys),
            "AUDIT_SPOOL_DIR": str(folder / "spool"),
            "MEMORY_DIR": str(folder / "memory"),
            **more,
        },
    )


# --- the past: a host under load, saved in the middle ---------------------------------------------


@dataclass(frozen=True)
class Past:
    """What is left of a host.

    Attributes:
        backup: saved as the page says, while it ran.
        end: its ledger and append-only file as they were in the end.
        acknowledged: the stored rows that were there before the backup began.
        spooled: the invocation whose completed row waited in the spool.
        held: the task that ran all the time.
    """

    keys: Path
    port: int
    backup: Path
    end: Path
    acknowledged: set[bytes]
    spooled: str
    held: str


@contextmanager
def load(stack: Stack) -> Iterator[Callable[[], int]]:
    """Skills of two tenants are called without end; how many were, so far."""
    done, count = threading.Event(), [0]

    def publish() -> None:
        while not done.is_set():
            with caller((TENANT, OTHER)[count[0] % 2]):
                stack.skills.echo.delay(count[0]).get(timeout=60)
            count[0] += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield lambda: count[0]
    finally:
        done.set()
        thread.join()


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder = tmp_path_factory.mktemp("past")
    keys, backup, end = folder / "keys", folder / "backup", folder / "end"
    backup.mkdir()
    end.mkdir()
    write_new(LedgerKeys.generate("skill-host.invalid"), keys)
    with EmbeddedServer(directory=folder / "memory", fsync="always") as server:
        addresses = {"AUDIT_MEMORY_URL": server.url, "MEMORY_URL": server.url}
        site = make_site(folder, server, keys, BACKUP=str(backup), **addresses)
        stack = Stack(folder, memory_url=server.url)
        try:
            stack.worker("prefork", 2, environ={"AUDIT_LEASE_SECONDS": LEASE})
            with site.keeper(), caller():
                held = stack.skills.hold.delay(str(folder / "release"))
                spooled, acknowledged = save_under_load(site, stack)
                (folder / "release").touch()
                held.get(timeout=30)
            assert site.audit("seal").returncode == 0
            assert site.verify()[0] == 0
        finally:
            stack.close()
        shutil.copytree(server.directory / "appendonlydir", end / "appendonlydir")
        shutil.copytree(site.ledger, end / "ledger")
        shutil.copytree(folder / "spool", end / "spool")
        port = server.port
    return Past(keys, port, backup, end, acknowledged, spooled, held.id)


def save_under_load(site: Site, stack: Stack) -> tuple[str, set[bytes]]:
    """The page's script, in the middle of a load that goes on afterwards."""
    with load(stack) as count:
        wait_until(lambda: count() > 40 and (site.ledger / "meta" / "checkpoint").exists(), 60)
        waiting = make_identity()
        stack.memory.emit(started(waiting))
        Spool(site.folder / "spool", stack.memory.name).keep(completed(waiting))
        acknowledged = {row.to_bytes() for row in stack.memory.rows()}
        site.shell(block("backup"))
        saved = count()
        wait_until(lambda: count() > saved + 40, 60)
    return waiting.request_id, acknowledged


# --- restored -------------------------------------------------------------------------------------


@contextmanager
def restored(folder: Path, past: Past, memory: Path, ledger: Path) -> Iterator[Site]:
    """The page's script over parts of one backup, or of two, at the address of before."""
    parts = folder / "parts"
    parts.mkdir()
    (parts / "appendonlydir").symlink_to(memory / "appendonlydir")
    (parts / "ledger").symlink_to(ledger / "ledger")
    (parts / "spool").symlink_to(memory / "spool")
    (folder / "memory").mkdir(mode=0o700)
    server = EmbeddedServer(directory=folder / "memory", fsync="always")
    site = make_site(folder / "site", server, past.keys, BACKUP=str(parts))
    site.environ["MEMORY_DIR"] = str(folder / "memory")
    site.shell(block("restore").replace("cp -a", "cp -aH"))
    server._port = past.port  # a spool belongs to one address
    with server:
        site.environ["AUDIT_MEMORY_URL"] = server.url
        yield site


def verify_words() -> list[str]:
    """The options that the page gives ``verify`` right after a restore."""
    line, keep = block("check").splitlines()
    assert keep == "celery -A app audit keep"
    words = shlex.split(line)
    assert words[:5] == ["celery", "-A", "app", "audit", "verify"]
    return words[5:]


def test_a_backup_under_load_is_whole(past: Past, tmp_path: Path) -> None:
    """RIGHT at once; no acknowledged row lacks; the keeper seals, replays and closes the rest."""
    with restored(tmp_path, past, past.backup, past.backup) as site:
        status, kinds, verdict = site.verify(*verify_words())
        assert (status, kinds, verdict["verdict"]) == (0, set(), "right")
        assert verdict["checked"] > 0
        with checked_memory(site.server.url) as memory:
            rows = {row.to_bytes() for row in memory.rows()}
            assert past.acknowledged <= rows
            assert len(list(memory.running())) >= 1
            with site.keeper():
                wait_until(lambda: not list(memory.running()), 60)
            assert reasons(memory, task_id=past.held) == ["abandoned"]
            assert reasons(memory, request_id=past.spooled) == ["returned"]
        assert site.audit("seal").returncode == 0
        status, kinds, verdict = site.verify()
        assert (status, kinds, verdict["unsealed"]) == (0, set(), 0)


def reasons(memory: AuditMemory, **wanted: str) -> list[str]:
    return [row.meta["reason"] for row in memory.rows(kind=COMPLETED, **wanted)]


def test_a_memory_older_than_its_ledger_is_found(past: Past, tmp_path: Path) -> None:
    """Sealed rows are missing: WRONG, ``cut``; and nothing is sealed over it."""
    with restored(tmp_path, past, past.backup, past.end) as site:
        status, kinds, verdict = site.verify(*verify_words())
        assert (status, verdict["verdict"]) == (1, "wrong")
        assert "cut" in kinds
        before = checkpoints(site.ledger)
        assert site.audit("seal").returncode == 1
        assert checkpoints(site.ledger) == before


def test_a_ledger_older_than_its_memory_is_found(past: Past, tmp_path: Path) -> None:
    """The memory knows a newer checkpoint: WRONG, ``rollback``; and nothing is sealed over it."""
    with restored(tmp_path, past, past.end, past.backup) as site:
        status, kinds, verdict = site.verify(*verify_words())
        assert (status, verdict["verdict"]) == (1, "wrong")
        assert "rollback" in kinds
        before = checkpoints(site.ledger)
        assert site.audit("seal").returncode == 1
        assert checkpoints(site.ledger) == before


def test_an_older_backup_shows_beside_a_checkpoint_that_somebody_kept(
    past: Past, tmp_path: Path
) -> None:
    """By itself it is RIGHT; a newer checkpoint from elsewhere makes it WRONG, ``rollback``."""
    kept = past.end / "ledger" / "meta" / "checkpoint"
    with restored(tmp_path, past, past.backup, past.backup) as site:
        assert site.verify(*verify_words())[0] == 0
        status, kinds, _ = site.verify(*verify_words(), "--from-checkpoint", str(kept))
        assert status == 1
        assert "rollback" in kinds


def checkpoints(ledger: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in ledger.glob("*/checkpoint")}
