"""audit/ledger/witnessing.py: what the witnesses of a meta log sign is kept, and nothing waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from audit import metrics
from audit.errors import CheckpointError, LedgerDamagedError, NoteKeyError, WitnessError
from audit.ledger.checkpoint import Checkpoint, OpenedCheckpoint, open_checkpoint
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.witness import Witness
from audit.ledger.witnessing import Witnessing, witnesses_of
from audit.testing import FakeClock
from tests.naive_merkle import NaiveTree
from tests.sealed import fill
from tests.support import wait_until
from tests.witness import SIZE, FakeWitness, dripping, serving

ORIGIN: Final = f"log.example/{META}"
KEYS: Final = LedgerKeys.generate("log.example", random=lambda size: b"k" * size)
SIGNERS: Final = KEYS.signers_of(ORIGIN)
ENTRIES: Final = [b"checkpoint %d" % number for number in range(600)]
TREE: Final = NaiveTree(ENTRIES)


class Ledger:
    """A meta log in files, without a sealer."""

    def __init__(self, root: Path) -> None:
        self.folder = LedgerFolder(root)
        self.meta = self.folder.log(META)
        self.size = 0

    def grow(self, size: int) -> bytes:
        fill(self.meta.tiles, ENTRIES[:size], self.size)
        self.size = size
        return self.put(size)

    def put(self, size: int, root: bytes | None = None) -> bytes:
        note = Checkpoint(ORIGIN, size, root or TREE.mth(0, size)).sign(*SIGNERS).to_bytes()
        self.meta.put_checkpoint(note)
        return note

    def witnessing(self, *fakes: FakeWitness, **options: Any) -> Witnessing:
        return Witnessing(
            self.folder,
            [Witness(fake.url, fake.key) for fake in fakes],
            origin="log.example",
            load_keys=lambda: KEYS,
            **options,
        )

    def cosigned(self, *fakes: FakeWitness) -> OpenedCheckpoint:
        raw = self.meta.cosigned()
        assert raw is not None
        keys = [fake.key for fake in fakes]
        return open_checkpoint(raw, ORIGIN, KEYS.verifiers_of(ORIGIN), keys)

    def who(self, *fakes: FakeWitness) -> tuple[int, set[str]]:
        """How large the cosigned tree is, and who has cosigned it."""
        opened = self.cosigned(*fakes)
        assert opened.signed_by == KEYS.verifiers_of(ORIGIN)
        return opened.checkpoint.size, {cosigned.witness.name for cosigned in opened.cosigned}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def fakes() -> Iterator[list[FakeWitness]]:
    with ExitStack() as stack:
        names = [f"w{number}.example" for number in range(3)]
        yield [
            stack.enter_context(serving(FakeWitness(name, seed=name.encode().ljust(32))))
            for name in names
        ]


def test_a_meta_log_without_entries_is_shown_to_nobody(
    ledger: Ledger, fakes: list[FakeWitness]
) -> None:
    """It was begun and speaks for nothing yet; cut back to that, it was rolled back."""
    ledger.put(0)
    asked = ledger.witnessing(*fakes)
    assert asked.round() is None
    assert not any(fake.asked for fake in fakes)
    ledger.grow(3)
    assert asked.round() is not None
    ledger.put(0)
    with pytest.raises(LedgerDamagedError, match="rolled back"):
        asked.round()


def test_nothing_is_asked_before_there_is_a_meta_log(
    ledger: Ledger, fakes: list[FakeWitness]
) -> None:
    """No checkpoint, no request, no file."""
    assert ledger.witnessing(*fakes).round() is None
    assert not any(fake.asked for fake in fakes)
    assert ledger.meta.cosigned() is None


def test_a_growing_log_is_cosigned_by_all(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """Each witness verifies the growth from what it saw last; the file has all signatures."""
    witnessing = ledger.witnessing(*fakes)
    for size in (1, 2, 255, 256, 257, 600):
        note = ledger.grow(size)
        did = witnessing.round()
        assert did is not None
        assert (did.size, did.cosigned, did.faults) == (size, {f.name for f in fakes}, {})
        assert ledger.who(*fakes) == (size, {fake.name for fake in fakes})
        assert (ledger.meta.cosigned() or b"").startswith(note)
        assert ledger.meta.checkpoint() == note
    assert [len(fake.asked) for fake in fakes] == [6, 6, 6]


def test_a_new_start_goes_on_from_the_file(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """What each has seen stands in the file, so that no conflict is needed to find it out."""
    for size in (3, 300):
        ledger.grow(size)
        ledger.witnessing(*fakes).round()
    assert [body.partition(b"\n")[0] for body in fakes[0].asked] == [b"old 0", b"old 3"]


def test_what_is_cosigned_is_not_asked_again(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """A quiet log asks nobody; but whoever was out is asked until it has signed as well."""
    ledger.grow(5)
    fakes[1].answers = [(503, "text/plain", b""), (503, "text/plain", b"")]
    witnessing = ledger.witnessing(*fakes)
    rounds = [witnessing.round() for _ in range(4)]
    assert [len(fake.asked) for fake in fakes] == [1, 3, 1]
    assert [sorted(did.faults) for did in rounds if did] == [["w1.example"], ["w1.example"], [], []]
    assert ledger.who(*fakes) == (5, {fake.name for fake in fakes})


def test_an_outage_holds_up_no_other(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """One is slow, one is gone: the third has signed, and the others catch up later."""
    ledger.grow(5)
    stop = threading.Event()
    fakes[0].answers = [dripping(stop)]
    gone = FakeWitness("gone.example", url="http://127.0.0.1:9")
    did = ledger.witnessing(fakes[0], gone, fakes[2], seconds=0.5).round()
    stop.set()
    assert did is not None
    assert (sorted(did.faults), did.cosigned) == (["gone.example", "w0.example"], {"w2.example"})
    assert ledger.who(*fakes) == (5, {"w2.example"})
    ledger.grow(9)
    ledger.witnessing(*fakes).round()
    assert ledger.who(*fakes) == (9, {fake.name for fake in fakes})


def test_all_are_asked_at_once(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """Each of them waits until the other two have been asked as well."""
    ledger.grow(5)
    all_asked = threading.Barrier(3, timeout=20)

    def together(fake: FakeWitness) -> Callable[[object], tuple[int, str, bytes]]:
        def answer(_: object) -> tuple[int, str, bytes]:
            all_asked.wait()
            return fake.answer(fake.asked[0])

        return answer

    for fake in fakes:
        fake.answers = [together(fake)]
    did = ledger.witnessing(*fakes, seconds=5).round()
    assert did is not None
    assert did.cosigned == {fake.name for fake in fakes}


def test_without_a_cosignature_the_older_one_stays(
    ledger: Ledger, fakes: list[FakeWitness]
) -> None:
    """While all are out, the newest that was cosigned is kept as it is."""
    ledger.grow(5)
    ledger.witnessing(fakes[0]).round()
    kept = ledger.meta.cosigned()
    newest = ledger.grow(9)
    fakes[0].answers = [(500, "text/plain", b"")]
    did = ledger.witnessing(fakes[0]).round()
    assert did is not None
    assert list(did.faults) == ["w0.example"]
    assert ledger.meta.cosigned() == kept
    assert ledger.meta.checkpoint() == newest


def test_a_bad_signature_is_not_kept(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """Whatever a witness sends, the file opens with every known key."""
    ledger.grow(5)
    other = FakeWitness(fakes[0].name, seed=b"o" * 32)
    text = Checkpoint(ORIGIN, 5, TREE.mth(0, 5)).to_text()
    line = other.line(text, key_id=fakes[0].key.key_id)
    fakes[0].answers = [(200, "text/plain", line.encode())]
    ledger.witnessing(*fakes).round()
    assert ledger.who(*fakes) == (5, {"w1.example", "w2.example"})


def test_a_larger_tree_is_never_replaced(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """An answer that comes late does not undo what another keeper has kept meanwhile."""
    ledger.grow(5)
    witnessing = ledger.witnessing(fakes[0])

    def overtaken(_: object) -> tuple[int, str, bytes]:
        ledger.grow(300)
        ledger.witnessing(fakes[1]).round()
        return fakes[0].answer(fakes[0].asked[0])

    fakes[0].answers = [overtaken]
    did = witnessing.round()
    assert did is not None
    assert did.cosigned == {"w0.example"}
    assert ledger.who(*fakes) == (300, {"w1.example"})


def test_a_log_behind_its_witnesses_is_an_alarm(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """Checkpoint and tiles put back to an older state: refused, and nobody is asked."""
    ledger.grow(300)
    ledger.witnessing(*fakes).round()
    ledger.put(200)
    with pytest.raises(LedgerDamagedError, match="rolled back: it has 200 leaves"):
        ledger.witnessing(*fakes).round()
    assert [len(fake.asked) for fake in fakes] == [1, 1, 1]


def test_a_witness_finds_a_rollback_that_took_the_file_along(
    ledger: Ledger, fakes: list[FakeWitness]
) -> None:
    """With the file gone as well, the witness still says that it has seen more."""
    ledger.grow(300)
    ledger.witnessing(fakes[0]).round()
    ledger.put(200)
    (ledger.meta.root / "checkpoint.cosigned").unlink()
    did = ledger.witnessing(fakes[0]).round()
    assert did is not None
    assert getattr(did.faults["w0.example"], "disagrees", None) is True


def test_a_larger_tree_of_another_keeper_is_no_alarm(
    ledger: Ledger, fakes: list[FakeWitness]
) -> None:
    """Where the log itself has grown as far by then, somebody else has asked; that is all."""
    ledger.grow(5)

    def overtaken(_: object) -> tuple[int, str, bytes]:
        ledger.grow(300)
        return 409, SIZE, b"300\n"

    fakes[0].answers = [overtaken]
    did = ledger.witnessing(fakes[0]).round()
    assert did is not None
    assert getattr(did.faults["w0.example"], "disagrees", None) is False


def test_as_large_a_tree_with_another_root_stays_an_alarm(
    ledger: Ledger, fakes: list[FakeWitness]
) -> None:
    """The log is as large as what the witness has seen, and that is no excuse."""
    ledger.grow(5)
    fakes[0].answers = [(409, SIZE, b"5\n")] * 2
    did = ledger.witnessing(fakes[0]).round()
    assert did is not None
    assert getattr(did.faults["w0.example"], "disagrees", None) is True


def test_a_damaged_file_is_made_anew(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """Garbage in checkpoint.cosigned stops nothing: the witness names the size."""
    ledger.grow(5)
    ledger.witnessing(fakes[0]).round()
    ledger.grow(9)
    ledger.meta.put_cosigned(b"garbage")
    ledger.witnessing(fakes[0]).round()
    assert ledger.who(*fakes) == (9, {"w0.example"})


def test_only_the_logs_own_checkpoint_is_shown(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """One of another log, or under another key, is sent to nobody."""
    ledger.grow(5)
    other = Checkpoint("log.example/other", 5, TREE.mth(0, 5)).sign(*SIGNERS)
    ledger.meta.put_checkpoint(other.to_bytes())
    with pytest.raises(CheckpointError):
        ledger.witnessing(*fakes).round()
    assert not any(fake.asked for fake in fakes)


# --- in the background ----------------------------------------------------------------------------


def test_whoever_pokes_never_waits(ledger: Ledger, fakes: list[FakeWitness]) -> None:
    """A poke begins in another thread; while that runs, or too soon, another does nothing."""
    ledger.grow(5)
    go, clock = threading.Event(), FakeClock()

    def held(_: object) -> tuple[int, str, bytes]:
        assert go.wait(20)
        return fakes[0].answer(fakes[0].asked[0])

    fakes[0].answers = [held]
    witnessing = ledger.witnessing(fakes[0], every=10, clock=clock)
    assert witnessing.poke() is True
    wait_until(lambda: fakes[0].asked)
    clock.pass_by(11)
    assert witnessing.poke() is False
    go.set()
    wait_until(lambda: ledger.meta.cosigned())
    wait_until(witnessing.poke)
    assert witnessing.poke() is False


def test_without_witnesses_a_poke_does_nothing(ledger: Ledger) -> None:
    """No thread, no request."""
    assert ledger.witnessing().poke() is False


def test_faults_are_told_once_and_by_what_they_mean(
    ledger: Ledger,
    fakes: list[FakeWitness],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage is sev-2, another tree sev-1, each once for as long as it lasts; none raises."""
    gauge: list[int] = []
    monkeypatch.setattr(metrics, "witnessed", lambda *, failing: gauge.append(failing))
    ledger.grow(5)
    fakes[0].answers = [(500, "text/plain", b"")] * 2
    fakes[1].answers = [(422, "text/plain", b"")] * 2
    clock = FakeClock()
    witnessing = ledger.witnessing(*fakes, every=1, clock=clock)
    for _ in range(3):
        wait_until(witnessing.poke)
        clock.pass_by(2)
    wait_until(witnessing.poke)
    told = {(r.levelno, getattr(r, "severity", "")) for r in caplog.records if r.name == "audit"}
    assert told == {(logging.ERROR, "sev-2"), (logging.CRITICAL, "sev-1")}
    assert len([r for r in caplog.records if r.name == "audit"]) == 2
    assert gauge[:3] == [2, 2, 0]


def test_a_rollback_is_told_as_an_alarm(
    ledger: Ledger, fakes: list[FakeWitness], caplog: pytest.LogCaptureFixture
) -> None:
    """What a round raises is in the log as well, as sev-1, and ends nothing."""
    ledger.grow(300)
    ledger.witnessing(fakes[0]).round()
    ledger.put(200)
    assert ledger.witnessing(fakes[0]).poke()
    record = wait_until(lambda: [r for r in caplog.records if r.name == "audit"])[0]
    assert (record.levelno, record.__dict__["severity"]) == (logging.CRITICAL, "sev-1")


def test_the_setting_names_witnesses() -> None:
    """Of each URL and key; a damaged key, a log's key, and two of one name are refused."""
    fake = FakeWitness()
    pair = ("https://witness.example/x/", fake.key.to_text())
    assert witnesses_of([pair]) == (Witness(pair[0], fake.key),)
    log_key = KEYS.verifiers[0].to_text()
    for vkey in ("", pair[1].replace("+", "-"), pair[1][:-1] + "A", log_key):
        with pytest.raises(NoteKeyError):
            witnesses_of([(pair[0], vkey)])
    with pytest.raises(WitnessError, match="one name"):
        witnesses_of([pair, pair])
