"""audit/ledger: wherever sealing is cut off, the next round goes on to the same ledger."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from audit.errors import LedgerRaceError, MemoryUnavailableError
from audit.ledger.checkpoint import origin_of
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.sealer import SealRound
from audit.ledger.tiles import new_tiles
from audit.memory.base import AuditMemory, Entry
from tests.sealing import (
    KEYS,
    PREFIX,
    Rows,
    contents,
    copy,
    files,
    log_of,
    make,
    meta_of,
    row_of,
    seal,
    verified,
)
from tests.support import TENANT

pytestmark = pytest.mark.usefixtures("no_flush")


class Killed(BaseException):
    """The process is gone; nothing else of it happens."""


class Death:
    """Strikes after the n-th operation; after that no operation works.

    So it strikes before the one behind it as well, and before the first nothing has happened.
    """

    def __init__(self, at: int) -> None:
        self.left = at
        self.struck = False
        self._lock = threading.Lock()

    def wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*args: Any, **named: Any) -> Any:
            with self._lock:
                if self.struck:
                    raise Killed
                self.left -= 1
                self.struck = self.left < 0
                done = operation(*args, **named)
                if self.struck:
                    raise Killed
                return done

        return perform


#: All that changes the disk or makes it durable.
OPERATIONS: Final = ("open", "write", "fsync", "link", "rename", "unlink", "mkdir", "rmdir")


class Mortal:
    """A memory whose calls can be the last."""

    def __init__(self, memory: AuditMemory, death: Death) -> None:
        self._memory, self._death = memory, death

    def __getattr__(self, name: str) -> Any:
        return self._death.wrap(getattr(self._memory, name))


def seal_and_die(memory: AuditMemory, directory: Path, death: Death, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name in OPERATIONS:
            patched.setattr(os, name, death.wrap(getattr(os, name)))
        try:
            make(Mortal(memory, death), directory, **options).round()  # type: ignore[arg-type]
        except Killed:
            assert death.struck


def ledger(memory: AuditMemory, directory: Path) -> dict[str, Any]:
    """All that a reader of a ledger of one tenant sees."""
    return {
        **contents(memory, directory, TENANT),
        "meta": meta_of(memory, directory),
        "keys": LedgerFolder(directory).keys(),
        "tenants": LedgerFolder(directory).tenants(),
    }


def tidy_files(directory: Path) -> dict[str, bytes | int]:
    """All but the hints."""
    return {name: held for name, held in files(directory).items() if "gathered" not in name}


def set_aside_what_no_sealer_reads(directory: Path, size: int) -> None:
    """The many full files before the right edge, so that a copy is quickly made."""
    for tile in new_tiles(0, size // 256 * 256 - 512 if size > 1000 else 0):
        if tile.level in (None, 0):
            name = tile.to_path()
            (directory / log_of(TENANT) / name).unlink()
            if tile.level is None:
                (directory / log_of(TENANT) / name.replace("tile/entries", "positions")).unlink()


def complete(directory: Path, whole: Path) -> None:
    """Put back what was set aside."""
    for path in whole.rglob("*"):
        target = directory / path.relative_to(whole)
        if path.is_file() and "." not in path.parent.name and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(path)


@pytest.mark.parametrize(
    ("size", "step", "most"),
    [
        (0, 3, 10_000),
        (255, 3, 10_000),
        (256, 3, 10_000),
        (257, 300, 10_000),
        (254, 4, 2),
        (70_000, 300, 10_000),
    ],
)
def test_a_crash_anywhere_leaves_what_the_next_round_goes_on_from(
    size: int, step: int, most: int, tmp_path: Path
) -> None:
    """At every operation on the disk and every call of the memory: the ledger that comes out is,
    byte for byte, the one of a round that nothing disturbed."""
    base, undisturbed, whole = tmp_path / "base", tmp_path / "undisturbed", tmp_path / "whole"
    memory = Rows()
    memory.counts[TENANT] = size
    whole.mkdir()
    if size:
        seal(memory, whole)
    copy(whole, base)
    set_aside_what_no_sealer_reads(base, size)
    at_first = dict(memory._sealed), dict(memory._sealed_positions)
    memory.counts[TENANT] += step
    copy(base, undisturbed)
    seal(memory, undisturbed, most=most)
    expected_files = tidy_files(undisturbed)
    sealed = dict(memory._sealed), dict(memory._sealed_positions)
    complete(undisturbed, whole)
    expected = ledger(memory, undisturbed)
    at = 0
    while True:
        memory._sealed, memory._sealed_positions = map(dict, at_first)
        directory, death = tmp_path / f"at-{at}", Death(at)
        copy(base, directory)
        seal_and_die(memory, directory, death, most=most)
        if not death.struck:
            break
        assert seal(memory, directory, most=most).faults == {}
        assert tidy_files(directory) == expected_files
        assert (memory._sealed, memory._sealed_positions) == sealed
        if at % 10 == 0:  # the same files and notes are the same ledger, and this takes its time
            complete(directory, whole)
            assert ledger(memory, directory) == expected
        shutil.rmtree(directory)
        at += 1
    assert at > 50


def test_rows_that_were_written_and_lost_before_they_were_sealed_do_no_harm(tmp_path: Path) -> None:
    """A memory may lose what it had not flushed; what the files had of that is written anew."""
    for lost in range(200):
        memory, directory = Rows(), tmp_path / str(lost)
        memory.counts[TENANT] = 250
        seal(memory, directory)
        memory.counts[TENANT] = 520
        death = Death(lost)
        seal_and_die(memory, directory, death)
        if size_of(memory) == 520:
            break
        memory.entries = changed(memory.entries)  # type: ignore[method-assign]
        assert seal(memory, directory).faults == {}
        rows = contents(memory, directory, TENANT)["rows"]
        assert rows[:250] == [row_of(TENANT, n) for n in range(1, 251)]
        assert rows[250:] == [row_of(TENANT, n) + b"!" for n in range(251, 521)]
    assert lost > 20


def test_a_crash_while_a_new_key_takes_over_is_finished_by_the_next_round(
    tmp_path: Path,
) -> None:
    """Anywhere: then every log, and the meta log, has the new signature in memory and folder."""
    rotated = KEYS.rotated()
    only = LedgerKeys(rotated.signers[:1], (), KEYS.secret)
    at = 0
    while True:
        memory, directory, death = Rows(), tmp_path / str(at), Death(at)
        memory.emit = lambda row, once=None: None  # type: ignore[method-assign, assignment, misc]
        memory.counts[TENANT] = 3
        seal(memory, directory)
        seal_and_die(memory, directory, death, load_keys=lambda: rotated)
        if not death.struck:
            break
        assert seal(memory, directory, load_keys=lambda: rotated).old_keys_may_go
        for role, name in ((TENANT, log_of(TENANT)), (META, META)):
            note = memory.sealed(role)
            assert LedgerFolder(directory).log(name).checkpoint() == note
            verified(note, f"{PREFIX}/{name}", only)
        assert len(meta_of(memory, directory)) == 2
        at += 1
    assert at > 20


def size_of(memory: AuditMemory) -> int:
    return verified(memory.sealed(TENANT), origin_of(PREFIX, TENANT, KEYS.secret)).size


def changed(entries: Callable[..., list[Entry]]) -> Callable[..., list[Entry]]:
    def others(*args: Any) -> list[Entry]:
        return [
            Entry(e.position, e.stored + b"!" * (int(e.position.partition("-")[0]) > 250))
            for e in entries(*args)
        ]

    return others


def test_a_swap_whose_reply_was_lost_is_no_harm(tmp_path: Path) -> None:
    """It landed: the next round goes on from it."""
    memory = Rows()
    memory.counts[TENANT] = 5
    swap = memory.swap_sealed

    def lost(role: str, *args: Any) -> bool:
        done = swap(role, *args)
        if role == META:
            return done
        raise MemoryUnavailableError("no reply", maybe_stored=True)

    memory.swap_sealed = lost  # type: ignore[method-assign]
    sealer = make(memory, tmp_path)
    with pytest.raises(MemoryUnavailableError):
        sealer.round()
    memory.swap_sealed = swap  # type: ignore[method-assign]
    memory.counts[TENANT] = 7
    assert sealer.round() == SealRound(rows=2, logs=1, waiting=0, faults={})
    assert len(ledger(memory, tmp_path)["meta"]) == 1


def test_a_swap_that_lands_late_is_no_harm(tmp_path: Path) -> None:
    """While the next round runs: that one seals nothing, the one behind it goes on."""
    memory = Rows()
    memory.counts[TENANT] = 5
    swap, late = memory.swap_sealed, []

    def wait(*args: Any) -> bool:
        if args[0] == META:
            return swap(*args)
        late.append(args)
        raise MemoryUnavailableError("no reply", maybe_stored=True)

    def land_first(*args: Any) -> bool:
        swap(*late.pop())
        memory.swap_sealed = swap  # type: ignore[method-assign]
        return swap(*args)

    memory.swap_sealed = wait  # type: ignore[method-assign]
    sealer = make(memory, tmp_path)
    with pytest.raises(MemoryUnavailableError):
        sealer.round()
    memory.swap_sealed = land_first  # type: ignore[method-assign]
    memory.counts[TENANT] = 9
    did = sealer.round()
    assert did is not None
    assert isinstance(did.faults[log_of(TENANT)], LedgerRaceError)
    assert sealer.round() == SealRound(rows=4, logs=1, waiting=0, faults={})
    assert len(contents(memory, tmp_path, TENANT)["rows"]) == 9
