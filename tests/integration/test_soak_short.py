"""A short soak: everything accounted for, nothing left open, and a leak on purpose is found."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path

import pytest
import redis

from audit.binary import find_server
from audit.embedded import EmbeddedServer
from audit.errors import EmbeddedServerError
from audit.memory import open_memory
from chaos import journal, verdict
from chaos.place import Place
from chaos.run import UNAVAILABLE
from soak.account import Accountant
from soak.publisher import IDS
from tests.runs import left, run
from tests.support import completed, make_identity, missing, started, wait_until

OTHER = "7b8c1d9e-4c56-4f0a-9a53-0d6f2a1e8b47"

SHORT = ("--invocations", "300", "--minutes", "0.06", "--control", "0", "--faults", "3")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def server_on_this_machine() -> None:
    try:
        find_server()
    except EmbeddedServerError as error:
        missing(str(error))


def test_a_short_soak_is_flat_and_accounted_for(tmp_path: Path) -> None:
    """Recycled children, every kind of fault and two outages: each invocation is closed once, and
    the spool has nothing left. What a run this short says of handles is chance: children open
    what they need when they first need it. The long one judges that, and test_soak.py how."""
    folder, figures = tmp_path / "run", tmp_path / "figures.json"
    with run("soak", folder, "--seed", "3", *SHORT, "--json", str(figures)) as process:
        printed, _ = process.communicate()
        assert process.returncode in (0, 1), printed
        assert left(folder) == []
    told = json.loads(figures.read_text())
    account = told["account"]
    assert account["published"] == 300
    assert account["findings"] == []
    assert "left when it should have been quiet           nothing" in printed
    assert account["endings"].keys() > {"returned", "raised", "retried"}
    assert told["recycled"] > 4
    assert sum(told["faults"].values()) == 5
    assert "audit verify                                  all is right" in printed
    assert "memory                                        not judged" in printed


def test_an_early_end_leaves_no_process(tmp_path: Path) -> None:
    """Interrupted, a soak ends its worker, keeper and servers before it ends itself."""
    folder = tmp_path / "run"
    with run("soak", folder, "--seed", "3", *SHORT) as process:
        wait_until(lambda: (folder / "audited" / "keeper-1.log").exists(), timeout=120)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
        wait_until(lambda: left(folder) == [], timeout=60)


def test_the_account_finds_what_is_lost_open_or_without_a_row(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    """A call that left nothing, an invocation that is open and a body without a row are found,
    whichever tenant they are of; a whole one, and a call that has its result only, are not."""
    calm = server.url.removesuffix("/0")
    place = Place(directory=tmp_path, calm=calm, memory=server.url_for(2), lease=2)
    whole, left_open = make_identity(), make_identity(tenant_id=OTHER)
    with closing(open_memory(place.memory)) as memory:
        for row in (started(whole), completed(whole), started(left_open)):
            memory.emit(row)
    for request_id in (whole.request_id, left_open.request_id, "nobody's"):
        journal.write(place.journal, request_id, "some task", "a skill")
    with redis.Redis.from_url(place.results) as results:
        refused = {"task_id": "told", "status": "FAILURE", "result": {"exc_type": UNAVAILABLE}}
        results.set("celery-task-meta-told", json.dumps(refused))
    called = [str(whole.task_id), str(left_open.task_id), "told", "vanished"]
    (tmp_path / IDS).write_text("\n".join(called))
    tally = Accountant(place).judge()
    assert {finding.rule: finding.subject for finding in tally.findings} == {
        verdict.UNACCOUNTED: "vanished",
        verdict.ORPHAN: left_open.request_id,
        verdict.UNAUDITED: "nobody's",
    }
    assert (tally.published, tally.started, tally.completed, tally.refused) == (4, 2, 1, 1)
