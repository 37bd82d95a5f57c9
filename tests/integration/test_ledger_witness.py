"""The meta log shown to ``aics-witness``, a C2SP witness not written here, in its own process."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from audit.errors import LedgerError, WitnessRefusalError
from audit.ledger.checkpoint import Checkpoint, open_checkpoint
from audit.ledger.folder import META, LedgerFolder
from audit.ledger.keys import LedgerKeys
from audit.ledger.note_key import VerifierKey
from audit.ledger.sealer import Sealer
from audit.ledger.witness import Witness
from audit.ledger.witnessing import Witnessing, WitnessRound
from audit.testing import InMemory
from tests.integration.oracle import installed
from tests.naive_merkle import NaiveTree
from tests.sealed import fill
from tests.support import completed, make_identity, started

pytestmark = pytest.mark.timeout(500)

PREFIX: Final = "host.example"
ORIGIN: Final = f"{PREFIX}/{META}"
KEYS: Final = LedgerKeys.generate(PREFIX, random=lambda size: b"k" * size)
NAME: Final = "witness.example/w1"


class Process:
    """The witness as its own command line runs it, with its state in a folder."""

    def __init__(self, package: Path, state: Path) -> None:
        self._package = package
        self._config = state / "witness.json"
        self.vkey = self.run("init", "--name", NAME).strip()
        self._serving: subprocess.Popen[str] | None = None
        self.url = ""

    def run(self, *args: str) -> str:
        done = subprocess.run(
            self._command(*args),
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def trust(self, origin: str, *keys: VerifierKey) -> None:
        for key in keys:
            self.run("add-log", "--origin", origin, "--vkey", key.to_text())

    def start(self) -> None:
        self._serving = subprocess.Popen(
            self._command("serve", "--listen", "127.0.0.1:0"),
            env=self._environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._serving.stderr is not None
        for line in self._serving.stderr:
            if found := re.search(r"listening on (\S+)", line):
                self.url = found[1]
                return
        pytest.fail("the witness does not start")

    def stop(self) -> None:
        if self._serving is not None:
            self._serving.terminate()
            self._serving.communicate(timeout=30)
            self._serving = None

    @property
    def witness(self) -> Witness:
        return Witness(self.url, VerifierKey.parse(self.vkey))

    def published(self) -> bytes:
        """What it shows to whoever monitors the log."""
        log = hashlib.sha256(ORIGIN.encode()).hexdigest()
        with urllib.request.urlopen(f"{self.url}/{log}/checkpoint", timeout=10) as answer:  # noqa: S310
            body: bytes = answer.read()
            return body

    def _command(self, *args: str) -> list[str]:
        command, *more = args
        config = ["--config", str(self._config)]
        return [sys.executable, "-m", "aics_witness", command, *config, *more]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self._package)}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    state = tmp_path / "witness"
    state.mkdir()
    process = Process(installed("aics-witness"), state)
    process.trust(ORIGIN, *KEYS.verifiers_of(ORIGIN))
    process.start()
    try:
        yield process
    finally:
        process.stop()


class Ledger:
    """A sealed ledger, whose meta log gets one more checkpoint with each row."""

    def __init__(self, root: Path, keys: LedgerKeys = KEYS, origin: str = PREFIX) -> None:
        self.memory = InMemory()
        self.folder = LedgerFolder(root)
        self.meta = self.folder.log(META)
        self._keys, self._origin = keys, origin
        self._sealer = Sealer(self.memory, root, origin=origin, load_keys=lambda: keys)

    def grow(self, rounds: int) -> None:
        for _ in range(rounds):
            identity = make_identity()
            self.memory.emit(started(identity))
            self.memory.emit(completed(identity))
            did = self._sealer.round()
            assert did is not None
            assert not did.faults

    def ask(self, process: Process) -> WitnessRound:
        did = Witnessing(
            self.folder, [process.witness], origin=self._origin, load_keys=lambda: self._keys
        ).round()
        assert did is not None
        return did

    def refusal(self, process: Process) -> WitnessRefusalError:
        fault: LedgerError = self.ask(process).faults[NAME]
        assert isinstance(fault, WitnessRefusalError)
        return fault


def test_it_cosigns_the_meta_log_as_it_grows(tmp_path: Path, process: Process) -> None:
    """Each step with a consistency proof; it publishes the tree that is kept beside ours."""
    ledger = Ledger(tmp_path / "ledger")
    total = 0
    for rounds in (1, 1, 5, 300):
        ledger.grow(rounds)
        total += rounds
        did = ledger.ask(process)
        assert (did.size, did.cosigned, did.faults) == (total, {NAME}, {})
        kept, published = ledger.meta.cosigned() or b"", process.published()
        witnesses = [process.witness.key]
        for raw in (kept, published):
            opened = open_checkpoint(raw, ORIGIN, KEYS.verifiers_of(ORIGIN), witnesses)
            assert opened.checkpoint.size == total
            assert [cosigned.witness.name for cosigned in opened.cosigned] == [NAME]
        assert kept == published


def test_another_verifier_accepts_what_is_kept(
    tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``checkpoint.cosigned`` is a note of the log and its witness for the oracle, too."""
    ledger = Ledger(tmp_path / "ledger")
    ledger.grow(3)
    ledger.ask(process)
    monkeypatch.syspath_prepend(installed("aics-witness"))
    aics = importlib.import_module("aics_tlog")
    note = aics.parse_note(ledger.meta.cosigned())
    keys = [aics.parse_vkey(key.to_text()) for key in KEYS.verifiers_of(ORIGIN)]
    assert aics.verify_note(note, keys)
    line = next(line for line in note.signatures if line.name == NAME)
    tree, witness = aics.parse_checkpoint(note.text), aics.parse_vkey(process.vkey).public_key
    said = (line.signature, NAME, witness, ORIGIN, tree.size, tree.root)
    assert aics.verify_cosignature(*said)
    assert not aics.verify_cosignature(*said[:-1], bytes(32))


def test_it_is_found_where_it_was_after_both_were_restarted(
    tmp_path: Path, process: Process
) -> None:
    """What it has seen is in its database; a lost file of ours costs one conflict and no more."""
    ledger = Ledger(tmp_path / "ledger")
    ledger.grow(4)
    ledger.ask(process)
    process.stop()
    ledger.grow(3)
    fault = ledger.ask(process).faults[NAME]
    assert "out of reach" in str(fault)
    process.start()
    (ledger.meta.root / "checkpoint.cosigned").unlink()
    assert ledger.ask(process).cosigned == {NAME}


def test_a_forked_meta_log_is_refused(tmp_path: Path, process: Process) -> None:
    """Larger, as large, or smaller: another tree under the same origin is an alarm each time."""
    first = Ledger(tmp_path / "first")
    first.grow(9)
    first.ask(process)
    forked = Ledger(tmp_path / "forked")
    for rounds in (5, 4, 20):
        forked.grow(rounds)
        refusal = forked.refusal(process)
        assert refusal.disagrees, refusal
    assert forked.meta.cosigned() is None


def test_a_rewritten_entry_is_refused(tmp_path: Path, process: Process) -> None:
    """A tree that has one changed leaf among those that were witnessed, rebuilt and signed anew."""
    first = Ledger(tmp_path / "first")
    first.grow(9)
    first.ask(process)
    entries = list(first.meta.tiles.rows(9))
    changed = [*entries[:3], b"another", *entries[4:], b"new"]
    meta = LedgerFolder(tmp_path / "second").log(META)
    fill(meta.tiles, changed)
    tree = Checkpoint(ORIGIN, 10, NaiveTree(changed).mth(0, 10))
    meta.put_checkpoint(tree.sign(*KEYS.signers_of(ORIGIN)).to_bytes())
    assert Ledger(tmp_path / "second").refusal(process).disagrees


@pytest.mark.parametrize(("origin", "seed", "status"), [("other", b"k", 404), (PREFIX, b"z", 403)])
def test_an_unknown_log_is_no_alarm(
    tmp_path: Path, process: Process, origin: str, seed: bytes, status: int
) -> None:
    """Another origin, another key: refused with what to do, and nothing is kept."""
    keys = LedgerKeys.generate(origin, random=lambda size: seed * size)
    ledger = Ledger(tmp_path / "ledger", keys, origin)
    ledger.grow(1)
    refusal = ledger.refusal(process)
    assert f" {status}, " in str(refusal)
    assert not refusal.disagrees
    assert ledger.meta.cosigned() is None
