"""`audit.cli_evidence`: what `prove`, `export` and `verify-pack` write, answer and refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from audit.cli import audit
from audit.ledger.checkpoint import origin_of
from audit.ledger.keys import LedgerKeys
from audit.ledger.note_key import SignerKey
from audit.ledger.proof import TlogProof
from audit.ledger.sealer import Sealer
from audit.row import AuditRow
from audit.testing import InMemory
from tests.evidence import LEDGER_KEY, NAME, ORIGIN, SECRET, rows, seal, unpacked
from tests.support import TENANT, make_identity, refused

VKEY = LEDGER_KEY.verifier.to_text()
ROWS = rows(12)
REQUEST = AuditRow.from_bytes(ROWS[4]).request_id


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemory:
    """Twelve rows of six invocations."""
    memory = InMemory()
    monkeypatch.setattr("audit.terminal.open_memory", lambda url, *, timeout: memory)
    for name in ("MEMORY_URL", "LEDGER_DIR", "LEDGER_KEYS", "LEDGER_ORIGIN"):
        monkeypatch.delenv(f"AUDIT_{name}", raising=False)
    for row in ROWS:
        memory.emit(AuditRow.from_bytes(row))
    return memory


@pytest.fixture
def ledger(tmp_path: Path, memory: InMemory) -> Path:
    """A ledger of all but the last of them."""
    seal(tmp_path / "ledger", ROWS[:11], first_position=1)
    return tmp_path / "ledger"


def run(ledger: Path | None, *args: str, **conf: Any) -> Result:
    keys = LedgerKeys((LEDGER_KEY,), (), SECRET).to_text()
    given = {"audit_ledger_origin": NAME, "audit_ledger_keys": keys, **conf}
    if ledger is not None:
        given["audit_ledger_dir"] = str(ledger)
    app = SimpleNamespace(conf=given)
    return CliRunner().invoke(audit, args, obj=SimpleNamespace(app=app, no_color=False))


# --- prove ----------------------------------------------------------------------------------------


def test_prove_writes_each_row_with_a_proof(ledger: Path, tmp_path: Path) -> None:
    """The stored bytes, and a proof that holds offline for them and for nothing else."""
    folder = tmp_path / "new" / "evidence"
    result = run(ledger, "prove", REQUEST, "-o", str(folder))
    names = [
        f"{REQUEST}.{index}{suffix}" for index in (4, 5) for suffix in (".json", ".tlog-proof")
    ]
    assert (result.exit_code, result.stdout) == (0, "".join(f"{folder / n}\n" for n in names))
    assert sorted(path.name for path in folder.iterdir()) == names
    for index in (4, 5):
        row = (folder / f"{REQUEST}.{index}.json").read_bytes()
        proof = TlogProof.parse((folder / f"{REQUEST}.{index}.tlog-proof").read_bytes())
        assert row == ROWS[index]
        opened = proof.verify(row, ORIGIN, [LEDGER_KEY.renamed(ORIGIN).verifier])
        assert (proof.index, opened.checkpoint.size) == (index, 11)


def test_prove_writes_here_and_may_be_done_again(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder it is the one that one stands in; a newer proof replaces the older."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        assert run(ledger, "prove", REQUEST).exit_code == 0
    assert len(list((tmp_path / "here").iterdir())) == 4


def test_prove_says_what_is_not_sealed_yet(ledger: Path, tmp_path: Path) -> None:
    """What is sealed is written, and the exit status is bad news."""
    request_id = AuditRow.from_bytes(ROWS[11]).request_id
    result = run(ledger, "prove", request_id, "-o", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "rows that are not sealed yet and have no proof: 1 of 2" in result.stderr
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.parametrize("request_id", ["01KB8Z5T3MZJ9Y2V4Q6R8S0TAW", "../evil", ""])
def test_prove_of_no_invocation(ledger: Path, tmp_path: Path, request_id: str) -> None:
    """An error, and nothing is written."""
    result = run(ledger, "prove", request_id, "-o", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "no invocation" in result.stderr
    assert not (tmp_path / "out").exists()


def test_prove_refuses_a_request_id_that_is_a_path(
    ledger: Path, memory: InMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where somebody has put such a row into the memory."""
    monkeypatch.setattr(
        memory, "select", lambda wanted: iter([AuditRow.from_bytes(ROWS[0], "1-0")])
    )
    result = run(ledger, "prove", "../evil", "-o", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert not list(tmp_path.glob("evil*"))


def test_prove_notices_a_row_that_changed(
    ledger: Path, memory: InMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory's row is not the sealed one: no proof of either is given away."""
    changed = ROWS[4].replace(b"alerts.triage", b"alerts.triagE")
    monkeypatch.setattr(
        memory, "select", lambda wanted: iter([AuditRow.from_bytes(changed, "5-0")])
    )
    result = run(ledger, "prove", REQUEST, "-o", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "not the one that was sealed as row 4: run `audit verify`" in result.stderr
    assert not (tmp_path / "out").exists()


OTHER = "00000000-0000-4000-8000-000000000002"


def test_another_tenants_row_spoils_no_proof(
    ledger: Path, memory: InMemory, tmp_path: Path
) -> None:
    """Each row is looked up in its own tenant's log, and a tenant without one is told apart."""
    memory.emit(refused(make_identity(tenant_id=OTHER, request_id=REQUEST)))
    result = run(ledger, "prove", REQUEST, "-o", str(tmp_path / "all"))
    assert (result.exit_code, f"tenant {OTHER}" in result.stderr) == (1, True)
    assert sorted(path.name for path in (tmp_path / "all").rglob("*.tlog-proof")) == [
        f"{REQUEST}.{index}.tlog-proof" for index in (4, 5)
    ]
    alone = run(ledger, "prove", REQUEST, "--tenant", TENANT, "-o", str(tmp_path / "one"))
    assert alone.exit_code == 0, alone.output
    assert len(list((tmp_path / "one").iterdir())) == 4
    theirs = run(ledger, "prove", REQUEST, "--tenant", OTHER, "-o", str(tmp_path / "other"))
    assert (theirs.exit_code, (tmp_path / "other").exists()) == (1, False)


def test_rows_of_two_tenants_get_folders_of_their_own(memory: InMemory, tmp_path: Path) -> None:
    """Under one request_id, each with the proof of its own log, whatever their places there."""
    memory.emit(refused(make_identity(tenant_id=OTHER, request_id=REQUEST)))
    keys = LedgerKeys((LEDGER_KEY,), (), SECRET)
    Sealer(memory, tmp_path / "ledger", origin=NAME, load_keys=lambda: keys).round()
    result = run(tmp_path / "ledger", "prove", REQUEST, "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    for tenant, count in ((TENANT, 2), (OTHER, 1)):
        proofs = list((tmp_path / "out" / tenant).glob("*.tlog-proof"))
        assert len(proofs) == count
        origin = origin_of(NAME, tenant, SECRET)
        for path in proofs:
            row = path.with_suffix("").with_name(path.name.replace(".tlog-proof", ".json"))
            TlogProof.parse(path.read_bytes()).verify(
                row.read_bytes(), origin, [LEDGER_KEY.renamed(origin).verifier]
            )


def test_keys_of_another_name_prove_and_export_nothing(ledger: Path, tmp_path: Path) -> None:
    """The origin is not what the key is named: what to set is said, nothing is written."""
    for args in (["prove", REQUEST], ["export", "--tenant", TENANT]):
        result = run(
            ledger, *args, "-o", str(tmp_path / "out"), audit_ledger_origin="elsewhere.example"
        )
        assert (result.exit_code, "AUDIT_LEDGER_ORIGIN" in result.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


def test_prove_into_a_place_that_cannot_be(ledger: Path, tmp_path: Path) -> None:
    """A file in the place of a folder above it."""
    (tmp_path / "file").write_text("")
    result = run(ledger, "prove", REQUEST, "-o", str(tmp_path / "file" / "out"))
    assert (result.exit_code, "cannot be written" in result.stderr) == (1, True)


@pytest.mark.parametrize("command", ["prove", "export"])
def test_without_a_ledger_or_its_keys(
    memory: InMemory, tmp_path: Path, command: str, ledger: Path
) -> None:
    """Wrong usage without a folder; keys that are missing or others are bad news, and said so."""
    args = {
        "prove": ["prove", REQUEST, "-o", str(tmp_path / "out")],
        "export": ["export", "--tenant", TENANT, "-o", str(tmp_path / "out")],
    }[command]
    without = run(None, *args)
    assert (without.exit_code, "set AUDIT_LEDGER_DIR" in without.stderr) == (2, True)
    keyless = run(ledger, *args, audit_ledger_keys=None)
    assert (keyless.exit_code, "keygen" in keyless.stderr) == (1, True)
    other = LedgerKeys((SignerKey.generate(NAME),), (), SECRET).to_text()
    forged = run(ledger, *args, audit_ledger_keys=other)
    assert (forged.exit_code, "none of the known keys" in forged.stderr) == (1, True)
    hidden = LedgerKeys((LEDGER_KEY,), (), b"q" * 32).to_text()
    unknown = run(ledger, *args, audit_ledger_keys=hidden)
    assert (unknown.exit_code, "nothing of this tenant is sealed" in unknown.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


# --- export and verify-pack -----------------------------------------------------------------------


def export(ledger: Path, target: Path, *more: str) -> Result:
    return run(ledger, "export", "--tenant", TENANT, "-o", str(target), *more)


def test_what_is_exported_verifies(ledger: Path, tmp_path: Path) -> None:
    """The whole log, with nothing but the pack and the key from outside."""
    done = export(ledger, tmp_path / "pack.zip")
    assert (done.exit_code, done.stdout) == (0, "11 rows, 0 to 10 of 11 sealed; asked for: 11\n")
    (tmp_path / "key").write_text(VKEY + "\n")
    for key in (VKEY, str(tmp_path / "key")):
        checked = run(None, "verify-pack", str(tmp_path / "pack.zip"), "--key", key)
        assert checked.exit_code == 0
        assert checked.stdout.splitlines()[-1] == "PASS: everything holds"


def test_a_time_is_exported(ledger: Path, tmp_path: Path) -> None:
    """With one row more at each end, in RFC 3339 with any offset."""
    times = ["--since", "2026-11-29T12:03:00Z", "--until", "2026-11-29T14:06:00+02:00"]
    done = export(ledger, tmp_path / "pack.zip", *times)
    assert done.stdout == "5 rows, 2 to 6 of 11 sealed; asked for: 3\n"
    assert unpacked(tmp_path / "pack.zip")["rows.jsonl"].splitlines() == ROWS[2:7]


@pytest.mark.parametrize(
    ("more", "status", "text"),
    [
        (["--since", "2027-01-01T00:00:00Z"], 1, "an empty pack proves nothing"),
        (["--since", "yesterday"], 2, "is no time"),
        (["--since", "1h", "--until", "2h"], 2, "must lie before"),
        (["--tenant", "nobody"], 2, "is no UUID"),
    ],
)
def test_what_cannot_be_exported(
    ledger: Path, tmp_path: Path, more: list[str], status: int, text: str
) -> None:
    """Bad news or wrong usage, and no file."""
    done = export(ledger, tmp_path / "pack.zip", *more)
    assert (done.exit_code, text in done.stderr) == (status, True)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


def test_export_overwrites_nothing(ledger: Path, tmp_path: Path) -> None:
    """A second export to the same place is refused."""
    assert export(ledger, tmp_path / "pack.zip").exit_code == 0
    before = (tmp_path / "pack.zip").read_bytes()
    again = export(ledger, tmp_path / "pack.zip")
    assert (again.exit_code, "left alone" in again.stderr) == (1, True)
    assert (tmp_path / "pack.zip").read_bytes() == before


def test_what_was_sealed_wrong_is_exported_and_said(memory: InMemory, tmp_path: Path) -> None:
    """The pack is there, and the exit status is bad news."""
    seal(tmp_path / "ledger", [*ROWS[:4], b"garbage"], first_position=1)
    done = export(tmp_path / "ledger", tmp_path / "pack.zip")
    assert (done.exit_code, done.stderr) == (
        1,
        "wrong when it was sealed: row 4 is no audit row\n",
    )
    assert (tmp_path / "pack.zip").exists()


def test_a_forged_pack_is_bad_news(ledger: Path, tmp_path: Path) -> None:
    """Findings on standard output, exit status 1; garbage likewise."""
    export(ledger, tmp_path / "pack.zip")
    other = SignerKey.generate(NAME).verifier.to_text()
    forged = run(None, "verify-pack", str(tmp_path / "pack.zip"), "--key", other)
    assert forged.exit_code == 1
    assert "FINDING (checkpoint): your key has not signed it" in forged.stdout
    (tmp_path / "garbage").write_bytes(b"\x1b[2J" * 99)
    garbage = run(None, "verify-pack", str(tmp_path / "garbage"), "--key", VKEY)
    assert (garbage.exit_code, garbage.stdout.splitlines()[-1][:4]) == (1, "FAIL")


@pytest.mark.parametrize(
    "args",
    [
        ["PACK"],
        ["PACK", "--key", "a+b+c"],
        ["PACK", "--key", "no-such-file"],
        ["no-such-file", "--key", VKEY],
        ["", "--key", VKEY],
        ["--key", VKEY],
    ],
)
def test_wrong_usage_of_verify_pack(ledger: Path, tmp_path: Path, args: list[str]) -> None:
    """Exit status 2, whatever is missing."""
    export(ledger, tmp_path / "pack.zip")
    given = [str(tmp_path / "pack.zip") if arg == "PACK" else arg for arg in args]
    assert run(None, "verify-pack", *given).exit_code == 2
