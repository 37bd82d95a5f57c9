"""audit/ledger: one log and the meta log taken back together, to checkpoints that both once had.

Every checkpoint is signed then and fits what memory and folder have. What else lies in the folder
tells, to whoever verifies and to the sealer; where nothing is left, only a kept checkpoint does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from audit.errors import LedgerDamagedError, LedgerRaceError
from audit.ledger.checkpoint import MOST
from audit.ledger.claims import Trust
from audit.ledger.finding import Finding, Kind, Report, Source, Verdict
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.log import LogFolder
from audit.ledger.sources import Sources
from audit.ledger.subject import Limits
from audit.ledger.tiles import Tile
from audit.ledger.tiles_beyond import tiles_beyond
from audit.ledger.traces import of_meta, of_tenant
from tests import sealing
from tests.sealing import KEYS, OTHER, PREFIX, Rows, files, kinds, log_of, make, meta_of, seal
from tests.support import TENANT
from tests.unit.test_ledger_crash import Death, seal_and_die

pytestmark = pytest.mark.usefixtures("no_flush", "real_rows")

LOG = log_of(TENANT)
PATIENT = Limits(open_for=1e12, unsealed_for=1e12)
#: What a crash between two writes is told as; the next round mends it.
OF_A_CRASH = ("since a crash", "broken off", "checkpoint is not there")


@dataclass
class World:
    """A ledger of two tenants, and the checkpoints that it had before both have grown."""

    root: Path
    memory: Rows = field(default_factory=lambda: Rows(**{OTHER: 4}))
    early: dict[str, tuple[bytes, str | None, int]] = field(default_factory=dict)
    newest: bytes = b""

    def __post_init__(self) -> None:
        self.empty: list[bytes] = []
        swap = self.memory.swap_sealed

        def swapped(role: str, old: bytes | None, new: bytes, position: str | None) -> bool:
            self.empty += [new] if role == META and old is None else []
            return swap(role, old, new, position)

        self.memory.swap_sealed = swapped  # type: ignore[method-assign]
        self.grow(5, 4)
        for role in (TENANT, OTHER, META):
            note, count = self.memory.sealed(role), self.memory.counts.get(role, 0)
            assert note is not None
            self.early[role] = note, self.memory.sealed_position(role), count
        self.grow(9, 8)
        assert len(meta_of(self.memory, self.root)) == 4
        self.newest = self.memory.sealed(META) or b""
        assert check(self.memory, self.root).verdict is Verdict.RIGHT

    def grow(self, own: int, other: int) -> None:
        self.memory.counts |= {TENANT: own, OTHER: other}
        assert seal(self.memory, self.root).faults == {}

    def put(self, role: str, note: bytes) -> None:
        self.memory._sealed[role] = note
        (self.root / (META if role == META else log_of(role)) / "checkpoint").write_bytes(note)

    def take_back(self, *roles: str) -> None:
        for role in roles:
            note, position, count = self.early[role]
            self.put(role, note)
            if position is not None:
                self.memory._sealed_positions[role] = position
                self.memory.counts[role] = count

    def drop_hints(self, *tenants: str) -> None:
        for tenant in tenants:
            (self.root / log_of(tenant) / "gathered").unlink()

    def drop_tiles(self, log: str, size: int) -> None:
        for tile in tiles_beyond(self.root / log, size):
            (self.root / log / tile.to_path()).unlink()


def sources(memory: Any, root: Path) -> Sources:
    return Sources(
        trust=Trust(KEYS.verifiers, PREFIX), memory=memory, ledger=root, secret=KEYS.secret
    )


def traces(memory: Any, root: Path) -> list[Finding]:
    of = sources(memory, root)
    found = [f for tenant in (TENANT, OTHER) for f in of_tenant(of, log_of(tenant), tenant)]
    return [*of_meta(of), *found]


@pytest.fixture
def real_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbered rows that pass for rows."""

    def row_of(tenant_id: str, number: int) -> bytes:
        payload = f'{{"skill_id":"a","request_id":"{tenant_id}-{number}"}}'
        ts = "2026-11-29T21:45:38.123456Z"
        return f'{{"kind":"x","payload":{payload},"meta":{{}},"ts":"{ts}"}}'.encode()

    monkeypatch.setattr("tests.sealing.row_of", row_of)


def check(memory: Any, root: Path, **more: Any) -> Report:
    return sealing.check(memory, root, limits=PATIENT, **more)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "a")


# --- what is left, and tells ----------------------------------------------------------------------


def keep_all(world: World) -> None: ...


def own_hint(world: World) -> None:
    world.drop_hints(OTHER)
    world.drop_tiles(META, 2)
    world.drop_tiles(LOG, 5)


def hint_of_another(world: World) -> None:
    world.drop_hints(TENANT)
    world.drop_tiles(META, 2)
    world.drop_tiles(LOG, 5)


def meta_tiles(world: World) -> None:
    world.drop_hints(TENANT, OTHER)
    world.drop_tiles(LOG, 5)


def own_tiles(world: World) -> None:
    world.drop_hints(TENANT, OTHER)
    world.drop_tiles(META, 2)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (keep_all, (Source.META, META)),
        (own_hint, (Source.META, META)),
        (hint_of_another, (Source.META, META)),
        (meta_tiles, (Source.MEMORY, LOG)),
        (own_tiles, (Source.LEDGER, LOG)),
    ],
)
def test_one_log_and_the_meta_log_taken_back_are_found(
    left: Callable[[World], None], expected: tuple[Source, str], world: World
) -> None:
    """By the place at which any log was gathered, by a signed checkpoint behind the end of the meta
    log, by files of rows that the memory does not have: each of them is enough."""
    world.take_back(TENANT, META)
    left(world)
    report = check(world.memory, world.root)
    assert (Kind.ROLLBACK, *expected) in kinds(report)
    assert report.verdict is Verdict.WRONG


def test_a_signed_checkpoint_behind_the_end_tells_an_outsider_too(world: World) -> None:
    """Of files alone, where nothing else is looked at."""
    world.take_back(TENANT, META)
    assert (Kind.ROLLBACK, Source.LEDGER, LOG) in kinds(check(None, world.root))


@pytest.mark.parametrize("tenant", [TENANT, OTHER])
def test_any_hint_tells_whoever_asks_for_one_tenant(tenant: str, world: World) -> None:
    """The other tenant's as well."""
    world.take_back(TENANT, META)
    hint_of_another(world)
    assert (Kind.ROLLBACK, Source.META, META) in kinds(
        check(world.memory, world.root, tenant=tenant)
    )


def test_where_nothing_is_left_only_a_kept_checkpoint_tells(world: World) -> None:
    """Neither hints nor files: what stands in the threat model. The kept one is of the meta log."""
    world.take_back(TENANT, META)
    own_tiles(world)
    world.drop_tiles(LOG, 5)
    assert check(world.memory, world.root).verdict is Verdict.RIGHT
    found = kinds(check(world.memory, world.root, given=(world.newest,)))
    assert (Kind.ROLLBACK, Source.META, META) in found


def test_an_unsigned_checkpoint_behind_the_end_says_nothing(world: World) -> None:
    """Whoever can write there could otherwise have any log look older than it is."""
    note = world.memory.sealed(TENANT) or b""
    forged = note.replace(b"\n9\n", b"\n99\n")
    path = world.root / META / Tile(None, 0, 5).to_path()
    entries = [*meta_of(world.memory, world.root), forged]
    path.write_bytes(b"".join(len(e).to_bytes(2, "big") + e for e in entries))
    assert check(world.memory, world.root).verdict is Verdict.RIGHT


def test_files_that_go_further_than_one_seal_are_found(world: World) -> None:
    """Of a tenant's log and of the meta log; the last place that a crash explains is none."""
    for log, size in ((LOG, 9), (META, 4)):
        for end, found in ((size + MOST, []), (size + MOST + 1, [Kind.ROLLBACK])):
            tile = Tile(0, (end - 1) // 256, (end - 1) % 256 + 1)
            path = world.root / log / tile.to_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(32) * tile.width)
            if log == LOG:  # rows that the memory will have
                world.memory.counts[TENANT] = end
                told = of_tenant(sources(world.memory, world.root), LOG, TENANT)
                assert [f.kind for f in told if "further" in f.text] == found
                world.memory.counts[TENANT] = 9
            else:
                assert [f.kind for f in of_meta(sources(world.memory, world.root))] == found
            path.unlink()


# --- an empty meta log ----------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["hints", "tiles"])
def test_a_meta_log_taken_back_to_its_beginning_is_found(left: str, world: World) -> None:
    """By a hint, or by files that hold a log twice, which no crash of the first round leaves."""
    world.put(META, world.empty[0])
    if left == "hints":
        world.drop_tiles(META, 0)
    else:
        world.drop_hints(TENANT, OTHER)
    report = check(world.memory, world.root)
    assert kinds(report) == [(Kind.ROLLBACK, Source.META, META)]
    assert report.verdict is Verdict.WRONG
    did = seal(world.memory, world.root)
    assert isinstance(did.faults[META], LedgerDamagedError)


@pytest.mark.parametrize("grown", [False, True])
def test_no_crash_leaves_what_looks_taken_back(grown: bool, tmp_path: Path) -> None:
    """In the first round, when nothing was gathered yet, and in a later one, wherever it strikes:
    verify names a crash at most, and nothing once the next round has been."""
    at = clean = 0
    while True:
        memory, root, death = Rows(**{OTHER: 4}), tmp_path / str(at), Death(at)
        memory.counts[TENANT] = 5
        root.mkdir()
        if grown:
            seal(memory, root)
            memory.counts |= {TENANT: 9, OTHER: 6}
        seal_and_die(memory, root, death)
        if not death.struck:
            break
        assert traces(memory, root) == []
        found = list(check(memory, root).findings())
        assert all(any(text in f.text for text in OF_A_CRASH) for f in found), found
        clean += not found
        if at % 5 == 0:
            assert seal(memory, root).faults == {}
            assert check(memory, root).verdict is Verdict.RIGHT
        at += 1
    assert min(at, clean) > 20


# --- what the sealer does -------------------------------------------------------------------------


@pytest.mark.parametrize("left", [keep_all, own_hint, hint_of_another])
def test_the_sealer_gathers_nothing_into_a_meta_log_that_was_taken_back(
    left: Callable[[World], None], world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is damage, with one alarm, whether rows wait or not; the hints stay as evidence."""
    world.take_back(TENANT, META)
    left(world)
    before = files(world.root / META)
    sealer = make(world.memory, world.root)
    for count in (5, 7):
        world.memory.counts[TENANT] = count
        did = sealer.round()
        assert did is not None
        assert isinstance(did.faults[META], LedgerDamagedError)
    assert files(world.root / META) == before
    assert (Kind.ROLLBACK, Source.META, META) in kinds(check(world.memory, world.root))
    alarms = [r for r in caplog.records if f"/{META} ends at" in r.getMessage()]
    assert [alarm.__dict__["severity"] for alarm in alarms] == ["sev-1"]


@pytest.mark.parametrize("left", [own_hint, hint_of_another])
def test_a_round_that_is_cut_short_finds_it_too(
    left: Callable[[World], None], world: World
) -> None:
    """Whichever log is served: all hints are read before anything is sealed."""
    world.take_back(TENANT, META)
    left(world)
    did = make(world.memory, world.root).round(lambda: False)
    assert did is not None
    assert isinstance(did.faults[META], LedgerDamagedError)


def test_a_keeper_knows_how_far_it_has_gathered(world: World) -> None:
    """Without any hint, for as long as it runs."""
    sealer = make(world.memory, world.root)
    world.memory.counts[TENANT] = 11
    did = sealer.round()
    assert did is not None
    assert did.faults == {}
    world.take_back(TENANT, META)
    own_tiles(world)
    world.memory.counts[TENANT] = 7
    did = sealer.round()
    assert did is not None
    assert isinstance(did.faults[META], LedgerDamagedError)


def test_another_who_gathers_meanwhile_is_a_race_and_no_damage(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines on one folder: its hints are then of a newer meta log than the one opened."""
    world.memory.counts[TENANT] = 11
    other = make(world.memory, world.root)
    original, rounds = LogFolder.gathered, list[Any]()

    def late(self: Any) -> int | None:
        if not rounds:
            rounds.append(None)
            monkeypatch.setattr(LedgerFolder, "_lock", lambda self, fd: True)
            rounds.append(other.round())
        return original(self)

    monkeypatch.setattr(LogFolder, "gathered", late)
    did = make(world.memory, world.root).round()
    assert rounds[1].rows == 2
    assert did is not None
    assert isinstance(did.faults[META], LedgerRaceError)
    assert seal(world.memory, world.root).faults == {}


# --- what is no finding ---------------------------------------------------------------------------


def test_a_copy_in_the_documented_order_is_right(world: World, tmp_path: Path) -> None:
    """The meta log first: hints and files in the rest may be far ahead of it, and of the
    checkpoints that were copied before them."""
    copy = tmp_path / "copy"

    def take(*names: str) -> None:
        for name in names:
            source = world.root / name
            for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
                if path.is_file():
                    target = copy / path.relative_to(world.root)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(path.read_bytes())

    rounds = iter(range(10, 99))
    for name in ("meta/checkpoint", "meta/tile", "keys", f"{LOG}/checkpoint", LOG, log_of(OTHER)):
        kept = (copy / LOG / "checkpoint").read_bytes() if name == LOG else None
        take(name)
        if kept is not None:
            (copy / LOG / "checkpoint").write_bytes(kept)
        for _ in range(3):
            number = next(rounds)
            world.grow(number, number)
    assert int((copy / LOG / "gathered").read_text()) > 4
    for secret in (KEYS.secret, None):
        assert check(None, copy, secret=secret).verdict is Verdict.RIGHT


@pytest.mark.parametrize("tries", [3, 99])
def test_a_sealer_at_work_is_no_finding(tries: int, world: World) -> None:
    """However often it goes on behind a look at the memory."""
    sealed, sealer, left = world.memory.sealed, make(world.memory, world.root), [0]

    def meanwhile(role: str) -> bytes | None:
        note = sealed(role)
        if left[0]:
            after, left[0] = left[0] - 1, 0
            world.memory.counts[TENANT] += 1
            world.memory.counts[OTHER] += 1
            assert sealer.round()
            left[0] = after
        return note

    world.memory.sealed = meanwhile  # type: ignore[method-assign]
    of = sources(world.memory, world.root)
    for look in (of_meta(of), of_tenant(of, LOG, TENANT)):
        left[0] = tries
        assert list(look) == []
    left[0] = 0
    assert check(world.memory, world.root).verdict is Verdict.RIGHT
