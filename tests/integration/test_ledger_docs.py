"""What docs/ledger.md tells a newcomer and an auditor to type works as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from audit import AuditMemory
from audit.embedded import EmbeddedServer
from tests.integration.stack import ROOT
from tests.support import completed, make_identity, started, wait_until

TEXT = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
TENANT = "550e8400-e29b-41d4-a716-446655440000"
REQUEST = "01KB8Z5T3MZJ9Y2V4Q6R8S0TAW"
KEY = "audit.example.com+aabbccdd+AQ..."
PLACES = ("/etc/skill-host", "/var/lib/skill-host")


def commands(heading: str) -> list[str]:
    """The lines of a section's shell blocks, without their comments."""
    section = re.split(r"^## ", TEXT, flags=re.M)
    (body,) = [part for part in section if part.startswith(f"{heading}\n")]
    blocks = re.findall(r"^```sh\n(.*?)^```", body, re.M | re.S)
    return [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.splitlines()]


@dataclass
class Reader:
    """Somebody who types what is written, in a shell whose folders lie elsewhere."""

    home: Path
    environ: dict[str, str]
    key: str = KEY
    keepers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def type(self, line: str) -> str:
        """The output of a line; a keeper goes on beside it."""
        for place in PLACES:
            line = line.replace(place, f"{self.home}{place}")
        line = line.replace(KEY, self.key)
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.environ[name] = value
            return ""
        if line.endswith("audit keep"):
            self._keep(line)
            return ""
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.home,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _keep(self, line: str) -> None:
        with (self.home / "keeper.log").open("wb") as log:
            self.keepers.append(
                subprocess.Popen(
                    shlex.split(line), cwd=self.home, env=self.environ, stdout=log, stderr=log
                )
            )
        # A newcomer is slower than the keeper.
        ledger = Path(self.environ["AUDIT_LEDGER_DIR"])
        wait_until(lambda: (ledger / "meta" / "checkpoint").exists(), 60)

    def set_up(self) -> None:
        for line in commands("Set it up"):
            said = self.type(line)
            if "keygen" in line:
                self.key = said.strip()

    def stop(self) -> None:
        for keeper in self.keepers:
            keeper.terminate()
            keeper.wait(30)


@pytest.fixture
def reader(tmp_path: Path, server: EmbeddedServer, memory: AuditMemory) -> Iterator[Reader]:
    """A host with some rows, and no setting of a ledger yet."""
    for request_id in (REQUEST, None, None):
        identity = make_identity(
            tenant_id=TENANT, **({"request_id": request_id} if request_id else {})
        )
        memory.emit(started(identity))
        memory.emit(completed(identity))
    binaries = Path(sys.executable).parent
    reader = Reader(
        tmp_path,
        {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "AUDIT_MEMORY_URL": server.url,
            "AUDIT_SPOOL_DIR": str(tmp_path / "spool"),
        },
    )
    yield reader
    reader.stop()


def test_the_newcomers_path(reader: Reader) -> None:
    """ "Set it up" as it stands: a key of the right name, a keeper that seals, and all verifies."""
    reader.set_up()
    assert reader.key.startswith("audit.example.com+")
    assert len(reader.key.split("+")) >= 3
    assert len(commands("Set it up")) == 7


def test_the_evidence_is_verified_with_the_printed_key(reader: Reader) -> None:
    """ "Evidence" as it stands: rows proven, a pack written, both programs pass it."""
    reader.set_up()
    said = [reader.type(line) for line in commands("Evidence")]
    assert len(said) == 5
    assert len(list((reader.home / "evidence").glob(f"{REQUEST}.*.tlog-proof"))) == 2


def test_a_copy_of_the_live_ledger_verifies(reader: Reader) -> None:
    """ "Verify" as it stands: copied while the keeper is at work, verified with the printed key."""
    reader.set_up()
    for line in commands("Verify"):
        reader.type(line)
    assert (reader.home / "copy" / "meta" / "checkpoint").exists()
    assert not (reader.home / "copy" / "tenants").exists()
