"""The users of the audit memory in Compose: each can do its work, and nothing beside it.

The server is the one of docker-compose.yml, started by deploy/valkey/start.sh.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry

from audit.doctor.check import Level
from audit.doctor.store import durability, store_probes, writes
from audit.errors import MemoryUnavailableError
from audit.invocation import Reason
from audit.ledger.keys import LedgerKeys
from audit.memory import AuditMemory, open_memory
from audit.memory.base import Hold, Once, RowFilter, Stored
from audit.memory.redis_keys import Keys
from audit.row import timestamp
from tests.integration.composed import ROOT, SECRETS, Machine, resolved
from tests.support import (
    TENANT,
    TRACE_ID,
    completed,
    make_ending,
    make_identity,
    refused,
    started,
    wait_until,
)

ORIGIN: Final = "audit.example.com"
RULES: Final = (ROOT / "deploy/valkey/start.sh").read_text(encoding="utf-8")
OF_TENANT: Final = Keys("audit", TENANT)
HELD, SEEN = "audit:{lease:w1}:held", "audit:{lease:w1}:seen"
LEADER: Final = "audit:{role:keeper}:leader"

Words = tuple[str, ...]


@dataclass(frozen=True)
class Server:
    """The memory of a composed host."""

    machine: Machine

    def url(self, user: str) -> str:
        place = f"127.0.0.1:{self.machine.ports['memory']}"
        return f"redis://{user}:{SECRETS[f'MEMORY_{user.upper()}_PASSWORD']}@{place}/0"

    @contextmanager
    def memory(self, user: str) -> Iterator[AuditMemory]:
        """As the user's own process opens it; the server has refused nothing in the end."""
        with self.client("operator") as operator:
            operator.execute_command("ACL", "LOG", "RESET")
            with closing(open_memory(f"{self.url(user)}?durability=always", timeout=5.0)) as memory:
                yield memory
            assert operator.execute_command("ACL", "LOG") == []

    def client(self, user: str) -> redis.Redis:
        return redis.Redis.from_url(self.url(user), protocol=2)

    def content(self) -> dict[bytes, bytes]:
        with self.client("operator") as operator:
            return {key: operator.dump(key) for key in operator.scan_iter()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    machine = Machine(tmp_path_factory.mktemp("memory"), resolved(), {})
    try:
        machine.up(("memory",))
        yield Server(machine)
    finally:
        machine.close()


# --- what each one needs -------------------------------------------------------------------------


def run_all(memory: AuditMemory) -> None:
    """Every way in which a worker puts rows on record."""
    first, again, lost, never = (make_identity() for _ in range(4))
    once = Once(token=first.request_id, seconds=60)
    hold = Hold(token=first.request_id, holder="m1", seconds=60)
    assert memory.emit(started(first), once, hold) is Stored.NEW
    assert memory.emit(completed(first)) is Stored.NEW
    assert memory.emit(completed(first, make_ending(Reason.RAISED))) is Stored.LATE
    assert memory.emit(started(again), once) is Stored.REPLAYED
    assert memory.emit(completed(again)) is Stored.NEW
    assert memory.emit(started(lost)) is Stored.NEW
    assert memory.emit(completed(lost, make_ending(Reason.WORKER_LOST))) is Stored.NEW
    assert memory.emit(completed(never, make_ending(Reason.NOT_DISPATCHED))) is Stored.BARRED
    assert memory.emit(refused(make_identity())) is Stored.NEW


def read_all(memory: AuditMemory) -> None:
    """Every way of reading that there is."""
    memory.check()
    (row, *_) = memory.rows(tenant_id=TENANT)
    assert list(memory.rows(request_id=row.request_id))
    for cursor in (None, memory.cursor_at(datetime.now(UTC))):
        assert memory.page(RowFilter(), cursor=cursor).rows
    assert memory.page(RowFilter(request_id=row.request_id)).rows
    assert memory.page(RowFilter(trace_id=TRACE_ID)).rows
    assert list(memory.rows(trace_id=TRACE_ID))
    assert memory.open_page(None, 10).total == len(list(memory.running()))
    assert TENANT in memory.tenants()
    assert memory.entries(TENANT, None, 10)
    assert memory.last_position(TENANT)
    assert not memory.leases(["w1"])
    assert not memory.is_led("keeper")
    for look in (memory.sealed, memory.sealed_position, memory.trimmed, memory.last_position):
        look(TENANT)


def test_a_worker_can_run_skills(server: Server) -> None:
    """Every kind of row, lease, doctor and reading: the server refuses the worker nothing."""
    with server.memory("worker") as memory:
        run_all(memory)
        memory.hold_lease("w1", 60)
        assert memory.leases(["w1"]) == {"w1"}
        memory.drop_lease("w1")
        read_all(memory)
        assert memory.lived_ms(next(memory.rows()), "w1") >= 0
        assert memory.store_time()
        for probe in store_probes(memory, 10.0):
            assert probe.look().level is Level.OK or probe.name == "keeper"


def test_a_keeper_can_close_seal_and_trim(server: Server) -> None:
    """Leading, closing, replaying, sealing, trimming: the server refuses the keeper nothing."""
    abandoned, spooled = make_identity(), make_identity()
    with server.memory("worker") as memory:
        memory.emit(started(abandoned))
        memory.emit(started(spooled))
    with server.memory("keeper") as memory:
        assert memory.lead("keeper", "k1", 60)
        assert memory.emit(completed(abandoned, make_ending(Reason.ABANDONED))) is Stored.NEW
        assert memory.emit(completed(spooled)) is Stored.NEW
        assert memory.emit(refused(make_identity())) is Stored.NEW  # so its own rows are stored
        last = memory.last_position(TENANT)
        assert memory.swap_sealed(TENANT, memory.sealed(TENANT), b"note", last)
        assert memory.trim(TENANT, str(last)) > 0
        assert memory.trimmed(TENANT)
        assert memory.store_time()
        memory.give_up("keeper", "k1")
        read_all(memory)
        assert writes(memory).level is Level.OK
        assert durability(memory).level is Level.OK


@pytest.mark.parametrize("user", ["flower", "gateway"])
def test_who_only_reads_can_read(server: Server, user: str) -> None:
    """Flower's pages and the gateway read whatever there is: the server refuses them nothing."""
    with server.memory("worker") as memory:
        run_all(memory)
    with server.memory(user) as memory:
        read_all(memory)


def test_flower_has_the_rights_that_its_page_names() -> None:
    """One rule, which is also in docs/pages.md for those without Compose."""
    page = (ROOT / "docs/pages.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"^ACL SETUSER pages on >PASSWORD (.*)$", page, re.M)
    assert f"reads='{named}'" in RULES
    for user in ("flower", "gateway"):
        assert re.search(rf"^user {user} on >[^>]*}} \$reads$", RULES, re.MULTILINE)


def test_the_doctor_says_what_a_user_lacks(server: Server) -> None:
    """Where its user may not write, the doctor's line and its advice say that it is the rights."""
    with closing(open_memory(server.url("flower"), timeout=5.0)) as memory:
        probes = store_probes(memory, 10.0)
        (probe,) = (one for one in probes if one.name == "writes")
        with pytest.raises(MemoryUnavailableError, match="permissions"):
            probe.look()
        assert "may write" in probe.advice


def test_the_keeper_of_a_composed_host_seals_and_trims(tmp_path: Path) -> None:
    """Its own process, as Compose starts it, with a ledger: refused nothing from start to stop."""
    ledger = {
        "AUDIT_LEDGER_DIR": "/var/lib/skill-ledger",
        "AUDIT_LEDGER_ORIGIN": ORIGIN,
        "AUDIT_LEDGER_KEYS": LedgerKeys.generate(ORIGIN).to_text(),
        "AUDIT_HOT_RETENTION": "60",
    }
    machine = Machine(tmp_path, resolved({**SECRETS, **ledger}), {})
    server = Server(machine)
    try:
        machine.up(("memory", "broker"))
        with server.memory("worker") as memory:
            for ago in (3600, 0):
                ts = timestamp(datetime.now(UTC) - timedelta(seconds=ago))
                memory.emit(started(identity := make_identity(), ts=ts))
                memory.emit(completed(identity, ts=ts))
            last = memory.last_position(TENANT)
            machine.start("keeper")
            wait_until(lambda: memory.sealed_position(TENANT) == last, 30)
            # Its next one begins with what may be trimmed, instead of half a minute later.
            assert machine.running["keeper"].stop() == 0
            machine.start("keeper")
            wait_until(lambda: memory.trimmed(TENANT), 30)
            assert len(list(memory.rows(tenant_id=TENANT))) == 2
            machine.running["keeper"].until_healthy()
        assert set(machine.down().values()) == {0}
    finally:
        machine.close()


# --- what nobody may -----------------------------------------------------------------------------

#: What loses or forges rows, and what changes the server: of no user.
NOBODY: Final[list[Words]] = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("DEL", OF_TENANT.rows),
    ("UNLINK", OF_TENANT.rows),
    ("XDEL", OF_TENANT.rows, "0-1"),
    ("SET", OF_TENANT.rows, "x"),
    ("EXPIRE", OF_TENANT.rows, "1"),
    ("RENAME", OF_TENANT.rows, "audit:{x}:rows"),
    ("MOVE", OF_TENANT.rows, "1"),
    ("XSETID", OF_TENANT.rows, "99999999999999-0"),
    ("DEL", OF_TENANT.requests),
    ("HDEL", OF_TENANT.requests, "x"),
    ("SET", OF_TENANT.requests, "x"),
    ("DEL", OF_TENANT.open),
    ("DEL", OF_TENANT.deaths),
    ("DEL", OF_TENANT.sealed),
    ("DEL", OF_TENANT.trimmed),
    ("DEL", OF_TENANT.seen("t1")),
    ("DEL", OF_TENANT.tick("tick")),
    ("SREM", "audit:tenants", TENANT),
    ("DEL", "audit:tenants"),
    ("SET", "another", "x"),
    ("RESTORE", "audit:{x}:rows", "0", "x"),
    ("SWAPDB", "0", "1"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("SHUTDOWN", "NOSAVE"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "FLUSH"),
    ("ACL", "SETUSER", "default", "on", "nopass", "+@all", "~*"),
    ("CONFIG", "REWRITE"),
]
CONFIG: Final[list[Words]] = [("CONFIG", "SET", "appendonly", "no")]
SEALING: Final[list[Words]] = [
    ("XTRIM", OF_TENANT.rows, "MAXLEN", "0"),
    ("SET", OF_TENANT.sealed, "x"),
    ("SET", OF_TENANT.sealed_position, "0-1"),
    ("SET", OF_TENANT.trimmed, "0-1"),
    ("SET", LEADER, "x"),
    ("DEL", LEADER),
]
STARTING: Final[list[Words]] = [
    ("ZADD", OF_TENANT.open, "1", "x"),
    ("SET", OF_TENANT.seen("t2"), "x"),
    ("SET", OF_TENANT.tick("t2"), "x"),
    ("SET", HELD, "1"),
    ("SET", SEEN, "1"),
    ("DEL", HELD),
]
EMITTING: Final[list[Words]] = [
    ("XADD", OF_TENANT.rows, "*", "row", "x"),
    ("HSET", OF_TENANT.requests, "x", "x"),
    ("ZREM", OF_TENANT.open, "x"),
    ("HINCRBY", OF_TENANT.deaths, "x", "1"),
    ("SADD", "audit:tenants", "x"),
    ("SET", "audit:{role:doctor-1}:leader", "x"),
]
NONE: Final = [*NOBODY, *SEALING, *STARTING, *EMITTING]
REFUSED: Final[dict[str, list[Words]]] = {
    "flower": [*NONE, *CONFIG, ("EVAL", "return 1", "0"), ("EVALSHA", "x", "0")],
    "gateway": [*NONE, *CONFIG, ("EVAL", "return 1", "0"), ("EVALSHA", "x", "0")],
    "worker": [*NOBODY, *CONFIG, *SEALING],
    "keeper": [*NOBODY, *CONFIG, *STARTING],
    "operator": [*NONE, ("EVAL", "return 1", "0")],
}


@contextmanager
def nothing_changes(server: Server) -> Iterator[None]:
    with server.memory("worker") as memory:
        run_all(memory)
    before = server.content()
    assert OF_TENANT.rows.encode() in before
    yield
    assert server.content() == before


@pytest.mark.parametrize("user", REFUSED)
def test_whatever_a_user_does_not_need_is_refused(server: Server, user: str) -> None:
    """Each command fails for want of a right, and what is stored stays as it is."""
    with nothing_changes(server), server.client(user) as client:
        for words in REFUSED[user]:
            with pytest.raises(NoPermissionError):
                raise AssertionError(words, client.execute_command(*words))


@pytest.mark.parametrize("user", ["worker", "keeper"])
def test_no_script_goes_further_than_its_caller(server: Server, user: str) -> None:
    """What a user may not do itself it cannot do by a script, whether or not it names the key."""
    script = "return redis.call(unpack(ARGV))"
    with nothing_changes(server), server.client(user) as client:
        for words in REFUSED[user]:
            keys = [word for word in words if word.startswith("audit:")]
            for named in ([], keys):
                with pytest.raises(ResponseError, match=r"ACL failure|not allowed from script"):
                    raise AssertionError(words, client.eval(script, len(named), *named, *words))


def test_nobody_comes_in_without_a_user(server: Server) -> None:
    """The default user is off, with no password and no right, so also no address is turned away."""
    for password in (None, "", *SECRETS.values()):
        port, once = server.machine.ports["memory"], Retry(NoBackoff(), 0)
        nobody = redis.Redis(port=port, password=password, retry=once)
        with closing(nobody), pytest.raises((AuthenticationError, NoPermissionError)):
            raise AssertionError(nobody.ping())
    with server.client("operator") as operator:
        (default,) = (
            rule for rule in operator.execute_command("ACL", "LIST") if b" default " in rule
        )
    assert default.split() == [b"user", b"default", b"off", b"resetchannels", b"-@all"]
