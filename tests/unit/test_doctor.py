"""`audit.doctor`: each line, what makes it BAD or WARN, and what it advises."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from audit.doctor.check import Check, Level, Probe, examine, named, ok
from audit.doctor.flower import access, config
from audit.doctor.local import context_keys, hash_keys, ledger_keys, spool
from audit.doctor.store import clock, durability, keeper, leases, reachable, store_probes, writes
from audit.errors import AuditError, MemoryUnsuitableError
from audit.keeper import ROLE
from audit.ledger.keys import LedgerKeys
from audit.memory.page import Damaged, Open
from audit.settings import AuditSettings
from audit.spool import Spool
from audit.testing import InMemory
from tests.fakes import DOWN
from tests.support import TENANT, completed, make_identity, started

NOW = datetime(2026, 11, 30, tzinfo=UTC)
KEYS = [{"id": "k1", "secret": "s" * 32}]


def said(check: Check, level: Level, seen: str, advice: str = "") -> None:
    assert check.level is level, check
    assert seen in check.seen
    assert advice in check.advice
    assert bool(check.advice) or level in (Level.OK, Level.SKIPPED)


# --- the run ------------------------------------------------------------------------------------


def test_whatever_a_probe_raises_is_a_line_of_its_own() -> None:
    """Errors of ours are told; of others only their class, for their text may hold a password."""

    def failing(error: BaseException) -> Probe:
        def look() -> NoReturn:
            raise error

        return Probe(name=type(error).__name__, look=look, advice="mend it")

    errors = (AuditError("ours"), ValueError("hunter2"), SystemExit("hunter2"))
    checks = examine([*map(failing, errors), Probe(name="fine", look=lambda: ok("fine", "yes"))])
    assert [(check.name, check.level, check.seen) for check in checks] == [
        ("AuditError", Level.BAD, "ours"),
        ("ValueError", Level.BAD, "failed: ValueError"),
        ("SystemExit", Level.BAD, "failed: SystemExit"),
        ("fine", Level.OK, "yes"),
    ]
    assert {check.advice for check in checks[:3]} == {"mend it"}


def test_no_probe_hangs_the_others() -> None:
    """A probe without an answer in time is BAD; all share that time, and others still answer."""
    never = threading.Event()

    def hang() -> Check:
        never.wait()
        return ok("hangs", "not any more")

    before = time.monotonic()
    hanging = [Probe(name="hangs", look=hang, advice="end it")] * 40
    *silent, fine = examine([*hanging, Probe(name="f", look=lambda: ok("f", "yes"))], seconds=0.05)
    never.set()
    assert time.monotonic() - before < 1.5  # 40 times 0.05 s, one after the other, would be 2
    for check in silent:
        said(check, Level.BAD, "no answer within 0.05 s", "end it")
    assert fine.level is Level.OK


def test_long_lists_are_cut() -> None:
    """Names come in order, ten at most, and the number of the others."""
    assert named(["b", "a"]) == "a, b"
    assert named(map(str, range(12))).endswith("and 2 more")


# --- the memory ---------------------------------------------------------------------------------


def test_a_memory_that_answers() -> None:
    """The line names it."""
    memory = InMemory()
    said(reachable(memory), Level.OK, memory.name)


def test_a_memory_out_of_reach_is_bad_in_each_of_its_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each line says so by itself and what to do."""
    memory = InMemory()

    def down(*_: object, **__: object) -> NoReturn:
        raise DOWN

    for name in ("store_time", "check", "lead", "is_led", "open_page"):
        monkeypatch.setattr(memory, name, down)
    for check in examine(store_probes(memory, 15)):
        said(check, Level.BAD, "did not answer", "every skill is refused")


def test_a_write_is_proven_and_taken_back() -> None:
    """OK after a real write, of which nothing stays; whoever leads goes on leading."""
    memory = InMemory()
    memory.lead(ROLE, "k", 60)
    said(writes(memory), Level.OK, "takes writes")
    assert memory._leaders.keys() == {ROLE}
    assert list(memory.rows()) == []


def test_durability(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the URL insists on is OK, a URL that insists on nothing WARN, an unfit server BAD."""
    memory = InMemory()
    said(durability(memory), Level.WARN, "left to the server", "durability=always")
    with monkeypatch.context() as patch:
        patch.setattr(InMemory, "durability", "always")
        said(durability(memory), Level.OK, "always")

    def unfit() -> NoReturn:
        raise MemoryUnsuitableError("maxmemory-policy is allkeys-lru, set it to noeviction")

    monkeypatch.setattr(memory, "check", unfit)
    said(durability(memory), Level.BAD, "set it to noeviction", "change the server")


@pytest.mark.parametrize(
    ("ahead", "level", "advice"),
    [
        (0.5, Level.OK, ""),
        (-1.5, Level.WARN, "NTP"),
        (1.5, Level.WARN, "NTP"),
        (4000, Level.BAD, "NTP"),
    ],
)
def test_clock_skew(
    monkeypatch: pytest.MonkeyPatch, ahead: float, level: Level, advice: str
) -> None:
    """More than a second is WARN, more than an hour BAD, in either direction."""
    memory = InMemory()
    monkeypatch.setattr(memory, "store_time", lambda: NOW + timedelta(seconds=ahead))
    said(clock(memory, lambda: NOW), level, "behind" if ahead < 0 else "ahead of", advice)


def test_a_slow_answer_is_no_clock_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the way to the memory may have taken explains as much of the difference."""
    memory, moments = InMemory(), iter([NOW, NOW + timedelta(seconds=4)])
    monkeypatch.setattr(memory, "store_time", lambda: NOW + timedelta(seconds=3.9))
    said(clock(memory, lambda: next(moments)), Level.OK, "ahead of")


def test_keeper() -> None:
    """Without one it is BAD, and the command that starts one is named."""
    memory = InMemory()
    said(keeper(memory), Level.BAD, "no keeper", "audit keep")
    memory.lead(ROLE, "k", 60)
    said(keeper(memory), Level.OK, "leads")


def test_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphan is WARN while a keeper may still close it, BAD 30 s after its lease ran out."""
    memory, identity = InMemory(), make_identity()
    said(leases(memory, 15), Level.OK, "nothing is running")
    memory.emit(started(identity))
    said(leases(memory, 15), Level.WARN, identity.request_id, "a keeper closes")
    later = memory.store_time() + timedelta(seconds=46)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "store_time", lambda: later)
        said(leases(memory, 15), Level.BAD, identity.request_id, "audit reconcile")
        patch.setattr(memory, "lived_ms", lambda *_: 20_000)
        said(leases(memory, 15), Level.WARN, identity.request_id)
    memory.hold_lease(identity.worker, 60)
    said(leases(memory, 15), Level.OK, "running: 1")
    memory.emit(completed(identity))


def test_damaged_open_invocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can close them, and nothing else of the line would say so."""
    memory = InMemory()
    found = Open(rows=(), total=1, damaged=(Damaged(TENANT, "7-1"),))
    monkeypatch.setattr(memory, "open_page", lambda *_: found)
    said(leases(memory, 15), Level.BAD, f"7-1 of tenant {TENANT}", "audit verify")


# --- keys and spool -----------------------------------------------------------------------------


def test_keys_of_contexts_and_hashes() -> None:
    """Without any it is WARN; with some their ids are told and never a secret."""
    without = AuditSettings()
    said(context_keys(without), Level.WARN, "not signed", "AUDIT_CONTEXT_KEYS")
    said(hash_keys(without), Level.WARN, "plain SHA-256", "AUDIT_HASH_KEYS")
    settings = AuditSettings.read({"audit_context_keys": KEYS, "audit_hash_keys": KEYS}, {})
    for check in (context_keys(settings), hash_keys(settings)):
        said(check, Level.OK, "k1")
        assert "s" * 32 not in check.seen


def test_keys_of_the_ledger(tmp_path: Path) -> None:
    """No ledger: not judged. Keys that are missing or open to others raise, which is BAD."""
    said(ledger_keys(AuditSettings()), Level.SKIPPED, "no ledger")
    path = tmp_path / "keys"
    settings = AuditSettings(ledger_dir=str(tmp_path), ledger_keys=str(path))
    with pytest.raises(AuditError, match="keys"):
        ledger_keys(settings)
    path.touch(mode=0o600)
    path.write_text(LedgerKeys.generate(settings.ledger_origin).to_text())
    said(ledger_keys(settings), Level.OK, "1 key")
    path.chmod(0o644)
    with pytest.raises(AuditError, match="others"):
        ledger_keys(settings)


def test_an_empty_spool_is_fine_and_is_not_made(tmp_path: Path) -> None:
    """A folder that the doctor made would belong to whoever runs the doctor."""
    found = Spool(tmp_path / "spool", "m")
    said(spool(found), Level.OK, "empty and can be written")
    assert list(tmp_path.iterdir()) == []
    found.check()
    said(spool(found), Level.OK, "empty")


def test_a_spool_in_which_rows_wait(tmp_path: Path) -> None:
    """Waiting is WARN; a full spool, a quarantine and rows for another memory are BAD."""
    found, row = Spool(tmp_path, "m", max_rows=1), completed(make_identity())
    found.keep(row)
    said(spool(found), Level.WARN, "wait for the memory: 1", "audit keep")
    said(spool(Spool(tmp_path, "n")), Level.BAD, str(found.directory), "AUDIT_MEMORY_URL")
    found.keep(completed(make_identity()))
    said(spool(found), Level.BAD, "full: 2 rows", "bring the memory back")
    found.set_aside(row)
    said(spool(found), Level.BAD, "quarantine: 1", "quarantine")


def test_a_spool_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BAD, before there is a folder; asked of the folder it would be made in."""
    asked: list[object] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append(path))
    said(spool(Spool(tmp_path / "a" / "spool", "m")), Level.BAD, "cannot be written", "folder")
    assert asked == [tmp_path]


def test_a_spool_in_the_place_of_which_a_file_stands(tmp_path: Path) -> None:
    """BAD, whoever asks."""
    (tmp_path / "spool").touch()
    said(spool(Spool(tmp_path / "spool", "m")), Level.BAD, "cannot be written", "folder")


def test_a_spool_that_others_can_read(tmp_path: Path) -> None:
    """WARN, and the command that mends it."""
    found = Spool(tmp_path, "m")
    found.check()
    found.directory.chmod(0o755)
    said(spool(found), Level.WARN, "open to other users", "chmod 700")


# --- Flower -------------------------------------------------------------------------------------

LOGIN = {"FLOWER_BASIC_AUTH": "auditor:hunter2"}


@pytest.mark.parametrize(
    ("environ", "level", "seen"),
    [
        (LOGIN, Level.OK, "credentials"),
        ({"FLOWER_AUTH": ".*@example.com"}, Level.OK, "credentials"),
        ({}, Level.WARN, "FLOWER_BASIC_AUTH"),
        (LOGIN | {"FLOWER_UNAUTHENTICATED_API": "false"}, Level.OK, "credentials"),
        (LOGIN | {"FLOWER_UNAUTHENTICATED_API": "1"}, Level.BAD, "FLOWER_UNAUTHENTICATED_API"),
        (LOGIN | {"FLOWER_PERSISTENT": "True"}, Level.BAD, "FLOWER_PERSISTENT"),
        (LOGIN | {"FLOWER_DEBUG": "yes"}, Level.BAD, "FLOWER_DEBUG"),
        (LOGIN | {"FLOWER_COOKIE_SECRET": "hunter2"}, Level.BAD, "FLOWER_COOKIE_SECRET"),
        ({"FLOWER_BASIC_AUTH": "a:b,hunter2"}, Level.BAD, "FLOWER_BASIC_AUTH"),
    ],
)
def test_access_to_flower(environ: dict[str, str], level: Level, seen: str) -> None:
    """What opens Flower or writes to disk is BAD, no login WARN; no value is repeated."""
    check = access(environ)
    said(check, level, seen)
    assert "hunter2" not in check.seen + check.advice


def test_the_configuration_of_flower(tmp_path: Path) -> None:
    """The shipped file is OK, another or none WARN, one that Python cannot read BAD."""
    shipped, mine = tmp_path / "shipped.py", tmp_path / "flowerconfig.py"
    shipped.write_text("x = 1\n")
    said(config({}, tmp_path, shipped), Level.WARN, "there is no", f"--conf={shipped}")
    said(config({"FLOWER_CONF": "shipped.py"}, tmp_path, shipped), Level.OK, "the shipped one")
    mine.write_text("x = 2\n")
    said(config({}, tmp_path, shipped), Level.WARN, "not the shipped one", "compare")
    said(config({}, tmp_path, None), Level.SKIPPED, "is there")
    mine.write_text("x = (\n")
    said(config({}, tmp_path, shipped), Level.BAD, "SyntaxError", f"--conf={shipped}")
