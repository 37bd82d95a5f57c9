"""audit/ledger: keys on a server that somebody else has replaced, and what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from audit.embedded import EmbeddedServer
from audit.errors import MemoryDamagedError
from audit.ledger.finding import META, Kind, Source, Verdict
from audit.ledger.folder import LedgerFolder
from audit.ledger.retention import HotRetention
from audit.ledger.sealer import TENANTS
from audit.ledger.tiles import encode_entries
from audit.memory import AuditMemory, open_memory
from audit.row import NIL_TENANT
from audit.testing import InMemory
from tests.sealing import (
    KEYS,
    NEIGHBOUR,
    check,
    contents,
    emit,
    log_of,
    make,
    meta_of,
    seal,
    two_tenants,
)
from tests.support import TENANT

pytestmark = pytest.mark.usefixtures("no_flush")

KEPT = ("rows", "sealed", "sealed_position", "trimmed")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def memory(server: EmbeddedServer, client: redis.Redis, tmp_path: Path) -> Iterator[AuditMemory]:
    """Two tenants' rows, 4 and 6, sealed; then 2 more each."""
    with closing(open_memory(server.url, timeout=10)) as memory:
        fill(memory, 4, 6)
        seal(memory, tmp_path)
        fill(memory, 2, 2)
        yield memory


def fill(memory: AuditMemory, neighbours: int, tenants: int) -> None:
    source = InMemory()
    emit(source, NEIGHBOUR, neighbours, neighbours)
    emit(source, TENANT, tenants, tenants + 10)
    for row in source.rows():
        memory.emit(row)


def replace(client: redis.Redis, name: str, value: bytes | None) -> None:
    """Another value in the place of a key, or a list."""
    client.delete(f"audit:{name}")
    if value is None:
        client.lpush(f"audit:{name}", "x")
    else:
        client.set(f"audit:{name}", value)


@pytest.mark.parametrize("value", [None, b"\xff", b"abc"])
@pytest.mark.parametrize("key", KEPT)
def test_one_tenants_key_stops_no_other(
    memory: AuditMemory,
    client: redis.Redis,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    key: str,
    value: bytes | None,
) -> None:
    """An alarm, once, of that tenant, and a finding there; the others are sealed and gathered, and
    all logs are checked."""
    replace(client, f"{{{TENANT}}}:{key}", value)
    sealer = make(memory, tmp_path)
    with caplog.at_level(logging.WARNING, logger="audit"):
        for rows in (2, 0):
            did = sealer.round()
            assert did is not None
            assert (did.rows, list(did.faults)) == (rows, [log_of(TENANT)])
    (alarm,) = caplog.records
    assert (alarm.levelname, alarm.severity) == ("CRITICAL", "sev-1")  # type: ignore[attr-defined]
    assert len(contents(memory, tmp_path, NEIGHBOUR)["rows"]) == 6
    assert len(meta_of(memory, tmp_path)) == 3
    report = check(memory, tmp_path)
    assert report.verdict is Verdict.WRONG
    assert {(f.log, f.tenant) for f in report.findings()} == {(log_of(TENANT), TENANT)}
    assert {log.tenant: log.checked for log in report.logs if log.tenant} == {
        NEIGHBOUR: 6,
        TENANT: 6,
    }


@pytest.mark.parametrize("key", KEPT)
def test_a_replaced_key_is_found_in_a_memory_alone(
    memory: AuditMemory, client: redis.Redis, tmp_path: Path, key: str
) -> None:
    """Whatever key the ledger reads it is."""
    seal(memory, tmp_path)
    replace(client, f"{{{TENANT}}}:{key}", None)
    found = {(f.kind, f.source, f.tenant) for f in check(memory, None).findings()}
    assert found == {(Kind.MALFORMED, Source.MEMORY, TENANT)}


@pytest.mark.parametrize("secret", [KEYS.secret, None])
@pytest.mark.parametrize("key", ["rows", "sealed"])
def test_a_replaced_key_is_found_where_nothing_was_sealed_yet(
    server: EmbeddedServer, client: redis.Redis, tmp_path: Path, key: str, secret: bytes | None
) -> None:
    """The other tenant's rows are counted as unsealed ones."""
    with closing(open_memory(server.url, timeout=10)) as memory:
        fill(memory, 4, 6)
        replace(client, f"{{{TENANT}}}:{key}", None)
        report = check(memory, tmp_path, secret=secret)
    assert (Kind.MALFORMED, TENANT) in {(f.kind, f.tenant) for f in report.findings()}
    assert {log.tenant: log.unsealed for log in report.logs} == {NEIGHBOUR: 4, TENANT: None}


@pytest.mark.parametrize("value", [None, b"\xff"])
def test_the_meta_logs_key_stops_no_sealing(
    memory: AuditMemory, client: redis.Redis, tmp_path: Path, value: bytes | None
) -> None:
    """It is an alarm and a finding of the meta log, and nothing is gathered meanwhile; once it is
    put back, all is."""
    note = memory.sealed(META)
    assert note is not None
    replace(client, f"{{{META}}}:sealed", value)
    sealer = make(memory, tmp_path)
    did = sealer.round()
    assert did is not None
    assert (did.rows, list(did.faults)) == (4, [META])
    report = check(memory, tmp_path)
    assert {f.log for f in report.findings()} == {META}
    assert {log.tenant: log.checked for log in report.logs if log.tenant} == {
        NEIGHBOUR: 6,
        TENANT: 8,
    }
    replace(client, f"{{{META}}}:sealed", note)
    did = sealer.round()
    assert did is not None
    assert did.faults == {}
    assert len(meta_of(memory, tmp_path)) == 4
    assert check(memory, tmp_path).verdict is Verdict.RIGHT


def test_a_key_that_was_never_a_checkpoint_keeps_no_ledger_from_beginning(
    server: EmbeddedServer, client: redis.Redis, tmp_path: Path
) -> None:
    """The meta log is begun, and the other tenant sealed."""
    with closing(open_memory(server.url, timeout=10)) as memory:
        fill(memory, 4, 6)
        replace(client, f"{{{TENANT}}}:sealed", None)
        did = seal(memory, tmp_path)
        assert (did.rows, list(did.faults)) == (4, [log_of(TENANT)])
        assert len(meta_of(memory, tmp_path)) == 1


def test_a_list_of_tenants_that_is_none_stops_nobody_who_has_a_log(
    memory: AuditMemory, client: redis.Redis, tmp_path: Path
) -> None:
    """It is an alarm; whoever verifies is told, and gets no verdict."""
    replace(client, "tenants", None)
    did = seal(memory, tmp_path)
    assert (did.rows, list(did.faults)) == (4, [TENANTS])
    with pytest.raises(MemoryDamagedError, match="audit:tenants"):
        check(memory, tmp_path)


def test_rows_of_the_nil_tenant_that_are_none_keep_no_new_key_from_sealing(
    memory: AuditMemory, client: redis.Redis, tmp_path: Path
) -> None:
    """That the key is not on record is an alarm; the row follows once it can."""
    replace(client, f"{{{NIL_TENANT}}}:rows", None)
    newer = KEYS.rotated(random=lambda size: b"n" * size)
    did = seal(memory, tmp_path, load_keys=lambda: newer)
    assert (did.rows, list(did.faults)) == (4, [log_of(NIL_TENANT)])
    client.delete("audit:{" + NIL_TENANT + "}:rows")
    assert seal(memory, tmp_path, load_keys=lambda: newer).faults == {}
    assert len(list(memory.rows(NIL_TENANT, kind="audit.key_rotated"))) == 1


@pytest.mark.parametrize("key", ["rows", "requests", "trimmed"])
def test_hot_retention_goes_on_with_the_others(
    memory: AuditMemory, client: redis.Redis, tmp_path: Path, key: str
) -> None:
    """The fault is that tenant's, and what stood there is not written over."""
    seal(memory, tmp_path)
    replace(client, f"{{{TENANT}}}:{key}", None)
    did = HotRetention(memory, LedgerFolder(tmp_path), seconds=0).trim()
    assert did.rows
    assert list(did.faults) == [TENANT]
    assert client.type(f"audit:{{{TENANT}}}:{key}") == b"list"


def test_the_alarm_of_hot_retention_on_damage_is_sev_1(
    memory: AuditMemory,
    client: redis.Redis,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It does not go by, as an outage does."""
    seal(memory, tmp_path)
    replace(client, f"{{{TENANT}}}:requests", None)
    HotRetention(memory, LedgerFolder(tmp_path), seconds=0)._watch()
    (alarm,) = caplog.records
    assert alarm.severity == "sev-1"  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", ["abc", "99999999999999999999-0"])
def test_a_line_of_positions_that_is_none_is_asked_of_no_memory(tmp_path: Path, line: str) -> None:
    """Whose an edited row was is then not looked up; what is wrong is found all the same."""
    memory = two_tenants(tmp_path)
    log = LedgerFolder(tmp_path).log(log_of(TENANT))
    stored = [entry.stored for entry in memory.entries(TENANT, None, 10)]
    edited = encode_entries([*stored[:5], b"no row", *stored[6:]])
    (log.root / "tile/entries/000.p/10").write_bytes(edited)
    lines = log.last_positions(10, 10)
    (log.root / "positions/000.p/10").write_text("\n".join([*lines[:4], line, *lines[5:]]) + "\n")
    assert {(f.kind, f.index) for f in check(memory, tmp_path).findings()} >= {
        (Kind.EDITED, 5),
        (Kind.MALFORMED, 0),
    }
