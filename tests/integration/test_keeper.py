"""`celery -A app audit keep` and `reconcile` as processes of their own, on a real memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from audit import AuditMemory, AuditRow
from audit.embedded import EmbeddedServer
from audit.keeper import ROLE
from audit.row import COMPLETED
from audit.spool import Spool
from tests.integration.prepared import Started, celery
from tests.support import completed, make_identity, started

ROOT = Path(__file__).parents[2]


@dataclass
class Host:
    """A host with an application, a spool, and processes that the test starts."""

    directory: Path
    memory_url: str
    started: list[Started] = field(default_factory=list)

    @property
    def spool_dir(self) -> Path:
        return self.directory / "spool"

    def start(self, *args: str, memory_url: str = "") -> Started:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AUDIT_MEMORY_URL": memory_url or self.memory_url,
            "AUDIT_SPOOL_DIR": str(self.spool_dir),
            "AUDIT_LEASE_SECONDS": "3",
        }
        process = celery(
            *("-A", "app", "audit", *args),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env=environ,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        for process in self.started:
            with process:
                process.kill()


@pytest.fixture
def host(tmp_path: Path, server: EmbeddedServer) -> Iterator[Host]:
    (tmp_path / "app.py").write_text("from celery import Celery\n\napp = Celery('plain')\n")
    host = Host(tmp_path, server.url)
    yield host
    host.end()


def event(process: Started) -> dict[str, object]:
    """The next line a keeper tells."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1].decode()
    return dict(json.loads(line))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_keeper_well(host: Host, memory: AuditMemory, signum: int) -> None:
    """Exit 0, its lease given back, nothing on standard error."""
    keeper = host.start("keep", "--json")
    assert event(keeper)["event"] == "leads"
    assert memory.is_led(ROLE)
    keeper.send_signal(signum)
    out, err = keeper.communicate(timeout=30)
    assert (keeper.returncode, out, err) == (0, b"", b"")
    assert not memory.is_led(ROLE)


def test_a_keeper_replays_and_closes(host: Host, memory: AuditMemory) -> None:
    """What waits on its host, and what a process left that is gone; who lives is left alone."""
    kept, gone, alive = (make_identity(worker=worker) for worker in ("kept", "gone", "alive"))
    memory.hold_lease("alive", 600)
    for identity in (kept, gone, alive):
        memory.emit(started(identity))
    Spool(host.spool_dir, memory.name).keep(completed(kept))
    keeper = host.start("keep", "--json")
    events = [event(keeper) for _ in range(3)]
    assert [told["event"] for told in events] == ["leads", "replayed", "closed"]
    assert events[2]["request_ids"] == [gone.request_id]
    assert [row.request_id for row in memory.running()] == [alive.request_id]
    assert len(list(memory.rows(kind=COMPLETED))) == 2


def test_a_second_keeper_takes_over_from_one_that_was_killed(host: Host) -> None:
    """By SIGKILL, with nothing given back: when its lease is over."""
    first = host.start("keep", "--json")
    assert event(first)["event"] == "leads"
    second = host.start("keep", "--json")
    assert event(second)["event"] == "follows"
    first.kill()
    assert event(second)["event"] == "leads"


def test_reconcile_closes_once_and_ends(host: Host, memory: AuditMemory) -> None:
    """Exit 0, the rows it wrote on standard output, as they are stored."""
    memory.emit(started(make_identity(worker="gone")))
    process = host.start("reconcile", "--json")
    out, err = process.communicate(timeout=60)
    (row,) = memory.rows(kind=COMPLETED)
    assert process.returncode == 0
    assert b"was abandoned by worker gone" in err
    assert AuditRow.from_bytes(out) == row
    assert out == row.to_bytes() + b"\n"


def test_reconcile_with_the_memory_out_of_reach_is_bad_news(host: Host) -> None:
    """Exit 1 and a text on standard error, no traceback."""
    process = host.start("reconcile", memory_url="redis://127.0.0.1:9/0")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"Error: memory redis://127.0.0.1:9/0 did not answer")
    assert b"Traceback" not in err


def test_a_keeper_lives_through_an_outage(host: Host) -> None:
    """It starts with the memory gone, says so once, and ends well when it is told to."""
    keeper = host.start("keep", "--json", memory_url="redis://127.0.0.1:9/0")
    assert keeper.stderr is not None
    assert b"the keeper waits for the memory" in keeper.stderr.readline()
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(30) == 0
