"""Evidence end to end: rows emitted to a real server, sealed, exported, and verified by strangers.

The stranger is the pack's own program, isolated in an empty folder, with a key from outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from audit import AuditMemory
from audit.embedded import EmbeddedServer
from audit.ledger.checkpoint import origin_of
from audit.ledger.keys import LedgerKeys, write_new
from audit.ledger.proof import TlogProof
from audit.ledger.sealer import Sealer
from tests.integration.prepared import celery, run_celery
from tests.support import TENANT, completed, make_identity, started, wait_until

ROOT = Path(__file__).parents[2]
OTHER_TENANT = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
ORIGIN = "ledger.example/audit"
OLD = "2026-01-01T00:00:00.000000Z"


@dataclass(frozen=True)
class Ledger:
    """A ledger in files, its keys, and the command line of an application that has it."""

    folder: Path
    url: str
    keys: LedgerKeys
    seal: Callable[[], object]

    @property
    def vkey(self) -> str:
        return self.keys.verifiers[0].to_text()

    def run(self, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_celery(*self._line(*args), cwd=self.folder, env=self._environ | more)

    @contextmanager
    def keeping(self, **more: str) -> Iterator[None]:
        """A keeper at work."""
        with (self.folder / "keeper.log").open("wb") as log:
            keeper = celery(
                *self._line("keep"),
                cwd=self.folder,
                env=self._environ | more,
                stdout=log,
                stderr=log,
            )
            try:
                yield
            finally:
                keeper.terminate()
                keeper.wait(30)

    def _line(self, *args: str) -> tuple[str, ...]:
        return ("-A", "app_of_test", "audit", *args)

    @property
    def _environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "AUDIT_MEMORY_URL": self.url,
            "AUDIT_LEDGER_DIR": str(self.folder / "ledger"),
            "AUDIT_LEDGER_ORIGIN": ORIGIN,
            "AUDIT_LEDGER_KEYS": str(self.folder / "keys"),
        }


@pytest.fixture
def ledger(tmp_path: Path, server: EmbeddedServer, memory: AuditMemory) -> Ledger:
    source = 'from celery import Celery\napp = Celery("app_of_test")\n'
    (tmp_path / "app_of_test.py").write_text(source)
    keys = LedgerKeys.generate(ORIGIN)
    write_new(keys, tmp_path / "keys")
    sealer = Sealer(memory, tmp_path / "ledger", origin=ORIGIN, load_keys=lambda: keys)
    return Ledger(tmp_path, server.url, keys, sealer.round)


def invocations(memory: AuditMemory, count: int, tenant_id: str = TENANT) -> list[str]:
    """So many invocations, their rows emitted side by side; their request_ids."""

    def invoke(_: int) -> str:
        identity = make_identity(tenant_id=tenant_id)
        memory.emit(started(identity))
        memory.emit(completed(identity))
        return identity.request_id

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(invoke, range(count)))


def verified_alone(ledger: Ledger, pack: Path, *keys: str) -> tuple[int, list[str]]:
    """Exit status and lines of the pack's own program, run isolated in an empty folder."""
    empty = ledger.folder / "empty"
    empty.mkdir(exist_ok=True)
    with zipfile.ZipFile(pack) as archive:
        (ledger.folder / "verify_pack.py").write_bytes(archive.read("verify_pack.py"))
    options = [part for key in keys for part in ("--key", key)]
    command = [sys.executable, "-I", str(ledger.folder / "verify_pack.py"), str(pack), *options]
    ran = subprocess.run(command, cwd=empty, env={}, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout.splitlines()


def test_an_export_verifies_at_a_strangers(ledger: Ledger, memory: AuditMemory) -> None:
    """Sealed in several rounds, of two tenants; one's pack has all of its rows and no other's."""
    for count in (150, 1, 260):
        invocations(memory, count)
        invocations(memory, 3, OTHER_TENANT)
        ledger.seal()
    pack = ledger.folder / "pack.zip"
    made = ledger.run("export", "--tenant", TENANT, "-o", str(pack))
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout == "822 rows, 0 to 821 of 822 sealed; asked for: 822\n"
    status, lines = verified_alone(ledger, pack, ledger.vkey)
    assert (status, lines[-1]) == (0, "PASS: everything holds")
    assert not any(line.startswith("note") for line in lines)
    with zipfile.ZipFile(pack) as archive:
        kept = archive.read("rows.jsonl").splitlines()
        names = b"".join(archive.read(n) for n in archive.namelist() if n != "rows.jsonl")
    assert kept == [row.to_bytes() for row in memory.rows(tenant_id=TENANT)]
    assert TENANT.encode() not in names
    checked = ledger.run("verify-pack", str(pack), "--key", ledger.vkey)
    assert (checked.returncode, checked.stdout.splitlines()) == (0, lines)


def test_a_time_in_the_middle_verifies(ledger: Ledger, memory: AuditMemory) -> None:
    """Of a log that goes on: the pack stays good when more was sealed behind it."""
    invocations(memory, 20)
    middle = make_identity()
    for row in (started(middle), completed(middle)):
        memory.emit(row)
    since, until = (row.ts for row in memory.rows(request_id=middle.request_id))
    invocations(memory, 20)
    ledger.seal()
    pack = ledger.folder / "pack.zip"
    made = ledger.run(
        "export", "--tenant", TENANT, "--since", since, "--until", until, "-o", str(pack)
    )
    assert made.returncode == 0, made.stderr
    invocations(memory, 300)
    ledger.seal()
    status, lines = verified_alone(ledger, pack, ledger.vkey)
    assert status == 0, lines
    assert verified_alone(ledger, pack, LedgerKeys.generate(ORIGIN).verifiers[0].to_text())[0] == 1


def test_each_row_of_an_invocation_is_proven(ledger: Ledger, memory: AuditMemory) -> None:
    """First and last of several bundles, and not before they are sealed."""
    request_ids = invocations(memory, 300)
    early = ledger.run("prove", request_ids[0], "-o", "out")
    assert (early.returncode, "nothing of this tenant is sealed" in early.stderr) == (1, True)
    ledger.seal()
    origin = origin_of(ORIGIN, TENANT, ledger.keys.secret)
    for request_id in (request_ids[0], request_ids[150], request_ids[-1]):
        made = ledger.run("prove", request_id, "-o", "out")
        assert (made.returncode, made.stderr) == (0, "")
        files = [ledger.folder / line for line in made.stdout.splitlines()]
        rows = [file.read_bytes() for file in files if file.suffix == ".json"]
        assert rows == [row.to_bytes() for row in memory.rows(request_id=request_id)]
        for row in files[::2]:
            proof = TlogProof.parse(row.with_suffix(".tlog-proof").read_bytes())
            proof.verify(row.read_bytes(), origin, ledger.keys.verifiers_of(origin))
    before = ledger.run("prove", request_ids[0], "-o", "hot")
    milliseconds = str(memory.last_position(TENANT)).partition("-")[0]
    assert memory.trim(TENANT, f"{int(milliseconds) + 1}-0") == 600
    after = ledger.run("prove", request_ids[0], "-o", "trimmed")
    assert after.stdout == before.stdout.replace("hot", "trimmed")
    late = invocations(memory, 1)[0]
    unsealed = ledger.run("prove", late, "-o", "late")
    assert (unsealed.returncode, "2 of 2" in unsealed.stderr) == (1, True)


def test_a_pack_outlives_a_rotation_of_keys(ledger: Ledger, memory: AuditMemory) -> None:
    """While keys overlap both have signed, and either is enough."""
    rotated = ledger.keys.rotated()
    invocations(memory, 5)
    sealer = Sealer(memory, ledger.folder / "ledger", origin=ORIGIN, load_keys=lambda: rotated)
    sealer.round()
    pack = ledger.folder / "pack.zip"
    assert ledger.run("export", "--tenant", TENANT, "-o", str(pack)).returncode == 0
    for key in rotated.verifiers:
        assert verified_alone(ledger, pack, key.to_text())[0] == 0


def test_what_the_keeper_trims_stays_provable(ledger: Ledger, memory: AuditMemory) -> None:
    """Hot retention, end to end: the old rows leave the memory, and `verify`, `list`, `show`,
    `export` and `prove` go on as before; without the setting the same memory lacks rows."""
    old = [make_identity() for _ in range(300)]
    for identity in old:
        memory.emit(started(identity, ts=OLD))
        memory.emit(completed(identity, ts=OLD))
    young = invocations(memory, 2)
    ledger.seal()
    asked = (
        ("list", "--tenant", TENANT, "--limit", "1000", "--json"),
        ("show", old[0].request_id, "--json"),
        ("prove", old[0].request_id, "-o", "proven"),
    )
    before = [ledger.run(*args) for args in asked]
    assert [one.returncode for one in before] == [0, 0, 0]
    hot = {"AUDIT_HOT_RETENTION": "3600"}
    with ledger.keeping(**hot):
        wait_until(lambda: len(memory.entries(TENANT, None, 1000)) == 2 * len(young), timeout=60)
    verified = ledger.run("verify", "--json", **hot)
    assert (verified.returncode, verified.stderr) == (0, "")
    (log,) = (one for one in map(json.loads, verified.stdout.splitlines()) if one.get("tenant"))
    assert (log["checked"], log["trimmed"]) == (604, 600)
    assert [ledger.run(*args).stdout for args in asked] == [one.stdout for one in before]
    pack = ledger.folder / "pack.zip"
    assert ledger.run("export", "--tenant", TENANT, "-o", str(pack)).returncode == 0
    assert verified_alone(ledger, pack, ledger.vkey)[0] == 0
    strict = ledger.run("verify", "--json")
    found = [one for one in map(json.loads, strict.stdout.splitlines()) if one["type"] == "finding"]
    assert found == []  # the memory itself says what was trimmed, whatever the setting
    assert strict.returncode == 0
