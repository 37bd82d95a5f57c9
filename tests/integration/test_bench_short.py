"""A tiny run of the bench: it ends well, prints every row, and leaves nothing. No word on speed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from audit.binary import find_server
from audit.errors import EmbeddedServerError
from bench.crew import Variant
from tests.support import missing, wait_until

ROOT = Path(__file__).parents[2]

THROUGHPUT = [variant.label for variant in Variant if variant.possible]
JUDGED = [f"{v.label}, of the yardstick" for v in Variant if v.possible and v.judged]
#: A peer that needs nothing installed, and has a program beside its worker.
PEERS = ["bare Celery", "Celery, events and a camera"]
EMIT = [
    f"{what}, fsync {fsync}, {writers}"
    for what in ("one append, nothing else (floor)", "memory.emit")
    for fsync in ("everysec", "always")
    for writers in ("1 writer", "2 writers")
]
PRIVACY = [
    "publish: signed",
    "receive: proof verified",
    "run, success: masked for others, logs redacted",
    "run, error that quotes an argument: masked for others, logs redacted",
    "start: with a token of its message",
    "one hash, keyed (3 a success)",
]
LEDGER = [
    "sealing",
    "files and memory",
    "files alone",
    "a row, 500 rows/s",
    "emit, no sealer",
    "emit beside a sealer",
]
BOARD = ["overview", "GET /audit", "GET /audit/invocation/ID", "GET /audit/list, no filter"]
#: Sections that do many times as much for each task; the others have 20.
TASKS = {"memory": "5", "board": "4"}
WAITING = [Variant.BARE.label, Variant.AUDITED.label]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def server_on_this_machine() -> None:
    try:
        find_server()
    except EmbeddedServerError as error:
        missing(str(error))


def left(directory: Path, program: str = "") -> list[psutil.Process]:
    """Live processes that a bench with that temporary directory started."""
    found = []
    for process in psutil.process_iter():
        try:
            own = process.environ().get("TMPDIR") == str(directory)
            if own and program in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@contextmanager
def bench(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory), "XDG_STATE_HOME": str(directory / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
            for other in left(directory):
                other.kill()


@pytest.mark.parametrize(
    ("section", "rows"),
    [
        ("throughput", 3 * THROUGHPUT + JUDGED),
        ("peers", PEERS),
        ("emit", EMIT),
        ("roundtrip", WAITING),
        ("memory", 2 * WAITING),
        ("privacy", 2 * PRIVACY),
        ("ledger", LEDGER),
        ("board", [*2 * BOARD, "GET /audit; 1,000 tenants"]),
    ],
)
def test_a_tiny_run(section: str, rows: list[str], tmp_path: Path) -> None:
    """Status 0, every row in its tables, the samples written, and nothing left."""
    samples = tmp_path / "samples.json"
    short = ["--rounds", "1", "--tasks", TASKS.get(section, "20"), "--only", section]
    short += ["--json", str(samples), "--writers", "2"]
    if section == "peers":
        short += ["--peers", "camera"]
    with bench(tmp_path, *short) as process:
        printed, errors = process.communicate()
        assert process.returncode == 0, errors
        lines = [line.split("|")[1].strip() for line in printed.splitlines() if line[:2] == "| "]
        for row in rows:
            assert lines.count(row) == rows.count(row), printed
        sampled = json.loads(samples.read_text())
        assert set(sampled) == {"environment", section}
        if section == "peers":  # a reason in the place of batches would be a row, too
            assert all(isinstance(found, list) for found in sampled[section].values()), errors
        assert left(tmp_path) == []
        assert list(tmp_path.iterdir()) == [samples]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_early_end_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    """However the bench ends, so do its workers, publishers and servers, PostgreSQL with them."""
    long = ("--only", "peers", "--peers", "audited_postgres", "--tasks", "10000")
    postgres = Variant.AUDITED_POSTGRES.possible
    last = "bench.worker audited-1-0" if postgres else "bench.worker bare-0-0"
    with bench(tmp_path, *long) as process:
        wait_until(lambda: left(tmp_path, last), timeout=60)
        folders = {Path(server.cwd()) for server in left(tmp_path, "postgres -D")}
        assert bool(folders) == postgres
        process.send_signal(number)
        assert process.wait(60) != 0
        psutil.wait_procs(left(tmp_path), timeout=60)
        wait_until(lambda: left(tmp_path) == [], timeout=1)
        assert not any(folder.exists() for folder in folders)
