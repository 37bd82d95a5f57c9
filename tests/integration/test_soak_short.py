"""A short soak: everything accounted for, nothing left open, and a leak on purpose is found."""

from __future__ import annotations

import json
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
from chaos.place import DIRECTORY
from tests.support import missing, wait_until

ROOT = Path(__file__).parents[2]

SHORT = ("--invocations", "300", "--minutes", "0.06", "--control", "0", "--faults", "3")

pytestmark = pytest.mark.timeout(300)


@contextmanager
def soak(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "soak", "--keep", str(directory), "--seed", "3", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
            for other in left(directory):
                other.kill()


def left(directory: Path) -> list[psutil.Process]:
    """Live processes of the run in that directory, its servers among them."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(DIRECTORY, "").startswith(str(directory))
            if mine or any(str(directory) in part for part in process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.fixture(autouse=True)
def server_on_this_machine() -> None:
    try:
        find_server()
    except EmbeddedServerError as error:
        missing(str(error))


def test_a_short_soak_is_flat_and_accounted_for(tmp_path: Path) -> None:
    """Recycled children, every kind of fault and two outages: each invocation is closed once,
    connections, handles and threads are as many as before, and the spool has nothing left."""
    folder, figures = tmp_path / "run", tmp_path / "figures.json"
    with soak(folder, *SHORT, "--json", str(figures)) as process:
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
        assert left(folder) == []
    told = json.loads(figures.read_text())
    account = told["account"]
    assert account["published"] == 300
    assert account["endings"].keys() > {"returned", "raised", "retried"}
    assert told["recycled"] > 4
    assert sum(told["faults"].values()) == 5
    assert "audit verify                                  all is right" in printed
    assert "memory                                        not judged" in printed


def test_an_early_end_leaves_no_process(tmp_path: Path) -> None:
    """Interrupted, a soak ends its worker, keeper and servers before it ends itself."""
    folder = tmp_path / "run"
    with soak(folder, *SHORT) as process:
        wait_until(lambda: (folder / "audited" / "keeper-1.log").exists(), timeout=120)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
        wait_until(lambda: left(folder) == [], timeout=60)
