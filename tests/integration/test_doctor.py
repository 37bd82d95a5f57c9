"""`celery -A app audit doctor` as an operator runs it, beside real servers and real workers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from audit.embedded import EmbeddedServer
from audit.keeper import ROLE
from audit.ledger.keys import LedgerKeys
from audit.memory import open_memory
from tests.integration.prepared import run_celery
from tests.integration.stack import ROOT, Stack
from tests.support import completed, make_identity, started

Lines = dict[str, dict[str, str]]
APP = "tests.integration.doctored_app"
SECRET = "s" * 32
KEYS = json.dumps([{"id": "k1", "secret": SECRET}])


def doctor(directory: Path, *args: str, **environ: str) -> tuple[int, Lines, str]:
    """Exit status, its lines by their names, and everything it wrote."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("AUDIT_", "FLOWER_"))}
    done = run_celery(
        *("-A", APP, "audit", "doctor", "--json", *args),
        cwd=directory,
        env={**inherited, "PYTHONPATH": str(ROOT), **environ},
    )
    lines = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    return done.returncode, lines, done.stdout + done.stderr


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path)
    yield stack
    stack.close(check=False)


@pytest.fixture
def durable() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(fsync="always") as server:
        yield server


def test_a_healthy_host(stack: Stack, durable: EmbeddedServer, tmp_path: Path) -> None:
    """Exit status 0, every line OK, and no secret in any of them."""
    url = f"{durable.url}?durability=always"
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text(LedgerKeys.generate("skill-host.invalid").to_text())
    (tmp_path / "flowerconfig.py").write_bytes((ROOT / "flowerconfig.py").read_bytes())
    environ = {
        **stack.environ,
        "HEALTHY": "1",
        "AUDIT_MEMORY_URL": url,
        "AUDIT_CONTEXT_KEYS": KEYS,
        "AUDIT_HASH_KEYS": KEYS,
        "AUDIT_LEDGER_DIR": str(tmp_path / "ledger"),
        "AUDIT_LEDGER_KEYS": str(keys),
        "FLOWER_BASIC_AUTH": f"auditor:{SECRET}",
    }
    stack.worker("prefork", 1, app=APP, environ=environ)
    memory = open_memory(url)
    memory.lead(ROLE, "a keeper", 60)
    status, lines, everything = doctor(tmp_path, **environ)
    memory.close()
    assert (status, {line["level"] for line in lines.values()}) == (0, {"OK"}), everything
    assert "prefork" in lines["worker pools"]["seen"]
    assert SECRET not in everything


def test_a_host_with_every_fault(stack: Stack, tmp_path: Path) -> None:
    """Exit status 1; each fault has a line that names it, and says what to do."""
    stack.worker("solo", 1, app=APP)
    orphan = make_identity(worker="gone")
    stack.memory.emit(started(orphan))
    spool = tmp_path / "spool"
    environ = {
        **stack.environ,
        "AUDIT_LEDGER_DIR": str(tmp_path / "ledger"),
        "AUDIT_LEDGER_KEYS": str(tmp_path / "no-such-keys"),
        "FLOWER_UNAUTHENTICATED_API": "true",
    }
    elsewhere = spool / "0123456789abcdef"
    elsewhere.mkdir(parents=True)
    (elsewhere / "1.row").write_bytes(completed(make_identity()).to_bytes())
    status, lines, everything = doctor(tmp_path, **environ)
    assert status == 1
    expected = {
        "durability": ("WARN", "left to the server"),
        "keeper": ("BAD", "no keeper leads"),
        "leases": ("WARN", orphan.request_id),
        "context keys": ("WARN", "not signed"),
        "hash keys": ("WARN", "plain SHA-256"),
        "ledger keys": ("BAD", "AUDIT_LEDGER_KEYS cannot be read"),
        "spool": ("BAD", "0123456789abcdef"),
        "pool": ("WARN", "solo"),
        "worker pools": ("WARN", "w0@test (solo)"),
        "time limits": ("WARN", "doctored.endless"),
        "plain tasks": ("WARN", "doctored.plain"),
        "beat": ("BAD", "tick"),
        "flower config": ("WARN", "flowerconfig.py"),
        "flower access": ("BAD", "FLOWER_UNAUTHENTICATED_API"),
    }
    for name, (level, seen) in expected.items():
        assert lines[name]["level"] == level, everything
        assert seen in lines[name]["seen"], everything
        assert lines[name]["advice"], everything
    assert lines["memory"]["level"] == lines["broker"]["level"] == "OK"


def test_a_memory_that_may_evict(tmp_path: Path, stack: Stack) -> None:
    """It is reachable and unfit, which are two lines."""
    with EmbeddedServer(options={"maxmemory-policy": "allkeys-lru"}) as server:
        status, lines, _ = doctor(tmp_path, **{**stack.environ, "AUDIT_MEMORY_URL": server.url})
    assert (status, lines["memory"]["level"]) == (1, "OK")
    assert lines["durability"]["level"] == "BAD"
    assert "noeviction" in lines["durability"]["seen"]


@pytest.mark.parametrize(
    "command",
    [("CONFIG", "SET", "maxmemory", "1mb"), ("REPLICAOF", "127.0.0.1", "1")],
    ids=["full", "a replica"],
)
def test_a_memory_that_answers_and_takes_no_writes(
    tmp_path: Path, stack: Stack, durable: EmbeddedServer, command: tuple[str, ...]
) -> None:
    """BAD though it answers and is fit: there every skill is refused."""
    with redis.Redis.from_url(durable.url) as client:
        client.execute_command(*command)
    status, lines, everything = doctor(
        tmp_path, **{**stack.environ, "AUDIT_MEMORY_URL": durable.url}
    )
    assert (status, lines["memory"]["level"]) == (1, "OK"), everything
    assert lines["writes"]["level"] == "BAD", everything
    assert "every skill is refused" in lines["writes"]["advice"]


def test_it_leaves_nothing(tmp_path: Path, stack: Stack, durable: EmbeddedServer) -> None:
    """No key of memory, broker or results is another afterwards, and no file is there."""
    stack.worker("solo", 1, app=APP)
    with (
        redis.Redis.from_url(durable.url) as memory,
        redis.Redis.from_url(stack.environ["CELERY_BROKER_URL"]) as broker,
    ):
        before = broker.dbsize(), set(tmp_path.rglob("*"))
        lines = doctor(tmp_path, **{**stack.environ, "AUDIT_MEMORY_URL": durable.url})[1]
        assert lines["writes"]["level"] == lines["broker"]["level"] == "OK"
        assert lines["worker pools"]["level"] == "WARN"
        assert memory.keys() == []
        assert (broker.dbsize(), set(tmp_path.rglob("*"))) == before


def test_servers_that_hang(stack: Stack, tmp_path: Path) -> None:
    """Connected, but silent: every line is there in bounded time, each check by itself."""
    stack.server.pause()
    try:
        before = time.monotonic()
        status, lines, everything = doctor(tmp_path, "--timeout", "3", **stack.environ)
        took = time.monotonic() - before
    finally:
        stack.server.resume()
    assert status == 1
    assert took < 20, took
    assert {lines[n]["level"] for n in ("memory", "broker", "result backend")} == {"BAD"}
    assert lines["plain tasks"]["seen"] == "not audited: doctored.plain"
    assert "Traceback" not in everything
