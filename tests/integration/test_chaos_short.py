"""A short chaos run is clean, leaves no process, and its judge finds what is wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from celery.exceptions import TimeLimitExceeded

from audit.binary import find_server
from audit.embedded import EmbeddedServer
from audit.errors import EmbeddedServerError
from audit.memory import open_memory
from audit.row import AuditRow, Identity, Reason
from audit.spool import Spool
from chaos import verdict
from chaos.closing import Closings
from chaos.faults import Kind, schedule
from chaos.injector import Blow
from chaos.journal import Effect
from chaos.place import Place
from chaos.verdict import Account, judge
from tests.integration.stack import caller, running_stack
from tests.integration.test_pools import ending
from tests.runs import left, run
from tests.support import completed, make_ending, make_identity, missing, started, wait_until

SHORT = ("--invocations", "250", "--faults", "10", "--minutes", "0.15", "--lease", "2")
ONE = ("--workers", "1")
#: One worker fewer than a run has.
SMALL = ("--workers", "2")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def server_on_this_machine() -> None:
    try:
        find_server()
    except EmbeddedServerError as error:
        missing(str(error))


def test_a_short_run_is_clean(tmp_path: Path) -> None:
    """Every kind of fault, hundreds of invocations: nothing lost, doubled, unaudited or open."""
    with run("chaos", tmp_path, *SHORT, *SMALL, "--seed", "7") as process:
        printed, _ = process.communicate()
        findings = tmp_path / "findings.txt"
        told = findings.read_text() if findings.exists() else ""
        assert process.returncode == 0, f"{printed}\n{told}"
        assert "--seed 7" in printed
        for kind in Kind:
            assert f"\n  {kind} " in printed
        assert left(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_early_end_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    """However a run ends, so do its workers, its keeper and its servers."""
    with run("chaos", tmp_path, "--invocations", "5000", "--faults", "0", *ONE) as process:
        wait_until(lambda: (tmp_path / "journal").exists(), timeout=60)
        process.send_signal(number)
        assert process.wait(60) != 0
        wait_until(lambda: left(tmp_path) == [], timeout=60)


def test_a_seed_is_a_schedule() -> None:
    """The same seed gives the same faults, another one others, and each kind comes."""
    one, same, other = (schedule(Random(seed), 20, 60) for seed in ("a", "a", "b"))
    assert one == same != other
    assert {fault.kind for fault in one} == set(Kind)


# --- the judge ------------------------------------------------------------------------------------


def effect(identity: Identity, *, pid: int = 11, main: int = 10) -> Effect:
    return Effect(
        request_id=identity.request_id,
        task_id=str(identity.task_id),
        skill=identity.skill_id,
        pid=pid,
        main=main,
        at=time.time(),
    )


def rules(rows: Sequence[AuditRow], effects: Sequence[Effect] = (), state: str = "") -> set[str]:
    """The rules that an account breaks."""
    results = {str(rows[0].meta["task_id"]): state} if rows and state else {}
    return {finding.rule for finding in judge(Account(rows, effects, results))}


def test_the_judge_passes_a_whole_invocation() -> None:
    """Started, effect, completed, result: nothing to find."""
    one = make_identity()
    assert rules([started(one), completed(one)], [effect(one)], "SUCCESS") == set()


def test_the_judge_finds_each_broken_rule() -> None:
    """What a run may never show is found, and under its own name."""
    one = make_identity()
    begin, end, mine = started(one), completed(one), effect(one)
    panic = completed(one, make_ending(Reason.WORKER_LOST))
    barred = completed(one, make_ending(Reason.NOT_DISPATCHED))
    assert rules([begin], [mine]) == {verdict.ORPHAN}
    assert rules([begin, end, panic], [mine]) == {verdict.DOUBLE}
    assert rules([], [mine]) == {verdict.UNAUDITED}
    assert rules([begin, end], [mine, mine]) == {verdict.TWICE}
    assert rules([begin, barred], [mine]) == {verdict.UNDISPATCHED}
    assert rules([begin, end]) == {verdict.GROUNDLESS}
    assert rules([panic]) == {verdict.NOT_STARTED}
    assert rules([panic, begin], [mine]) == {verdict.DISORDER}
    assert rules([begin, panic], [mine], "SUCCESS") == {verdict.UNBACKED}
    broken = replace(begin, payload={**begin.payload, "args_hash": "no"})
    assert rules([broken, end], [mine]) == {verdict.INVALID}


def test_a_death_has_its_cause_and_its_time(server: EmbeddedServer) -> None:
    """A death that no fault explains is found, and so is one that is closed too late."""
    one = make_identity()
    with closing(open_memory(server.url)) as memory:
        memory.emit(started(one))
        memory.emit(completed(one, make_ending(Reason.WORKER_LOST)))
        account = Account(list(memory.rows()), [effect(one)], {})
    stranger = Blow(at=time.time() - 1, what="another", pids=frozenset({99}))
    closings, findings = Closings(account, [stranger], []).judge(2)
    assert ([f.rule for f in findings], closings) == ([verdict.UNEXPLAINED], [])
    mine = Blow(at=time.time() - 1, what="its own", pids=frozenset({11}))
    closings, findings = Closings(account, [stranger, mine], []).judge(2)
    assert (findings, [closing.blow for closing in closings]) == ([], [mine])
    closings, findings = Closings(account, [mine], []).judge(-3)
    assert [f.rule for f in findings] == [verdict.SLOW_CLOSING]


# --- what it found --------------------------------------------------------------------------------


def test_a_hard_limit_in_an_outage_is_a_timeout(tmp_path: Path, server: EmbeddedServer) -> None:
    """The main process's ending waits in the spool; what the dying child says does not overtake."""
    release = tmp_path / "release"
    with running_stack(tmp_path, memory_url=server.url, audit_emit_timeout=10) as stack:
        spool = Spool(tmp_path / "spool", stack.memory.name)
        stack.worker("prefork", 2, environ={"AUDIT_EMIT_TIMEOUT": "0.5"})
        with caller():
            held = stack.skills.hold.delay(str(release))
            wait_until(lambda: f"holding {release}" in stack.journal())
            killed = stack.skills.hard_limit.delay("hard")
        wait_until(lambda: "hard" in stack.journal())
        server.pause()
        release.touch()
        wait_until(lambda: not spool.empty)
        with pytest.raises(TimeLimitExceeded):
            killed.get(timeout=30)
        server.resume()
        assert held.get(timeout=30) == "released"
        assert ending(stack.pair(killed.id)) == ("timeout", "hard_time_limit")


def test_the_environment_is_a_runs_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of whoever starts a run do not reach its processes."""
    monkeypatch.setenv("AUDIT_MEMORY_URL", "redis://elsewhere")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://elsewhere")
    place = Place(directory=tmp_path, calm="redis://c", memory="redis://m", lease=2)
    environ = place.environ(os.environ)
    assert environ["AUDIT_MEMORY_URL"] == "redis://m"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in environ
