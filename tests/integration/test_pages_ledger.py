"""What the audit's pages say of a ledger that a real sealer writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from audit.ledger.sealer import Sealer
from audit.row import AuditRow
from tests.integration.flower import Flower, start_flower
from tests.integration.stack import Stack
from tests.sealing import make
from tests.support import TENANT, completed, make_identity, started


@dataclass
class Place:
    stack: Stack
    flower: Flower
    sealer: Sealer

    def emit(self, row: AuditRow) -> None:
        self.stack.memory.emit(row)

    def proof(self, request_id: str) -> str:
        """What the page of an invocation says of the ledger."""
        return self.card(f"/audit/invocation/{request_id}", "Ledger")

    def card(self, path: str, label: str) -> str:
        page = self.flower.ask(path)
        assert page.status == 200, page.text
        found = re.search(rf">{label}</dt><dd class=\"metric-value\">([^<]+)<", page.text)
        assert found, page.text
        return found[1]

    def log(self) -> tuple[str, ...]:
        """Rows sealed and rows waiting, as the overview has them."""
        page = self.flower.ask("/audit").text
        section = page.partition('id="audit-ledger-scroll"')[2]
        row = re.search(rf"{TENANT}</th>(.*?)</tr>", section, re.S)
        assert row, section
        return tuple(re.findall(r'<td class="audit-number">([^<]+)</td>', row[1]))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Flower knows the name of the ledger's folder, which is not on its machine."""
    stack = Stack(tmp_path)
    flower = start_flower(stack, tmp_path, AUDIT_LEDGER_DIR=str(tmp_path / "elsewhere"))
    try:
        yield Place(stack, flower, make(stack.memory, tmp_path / "ledger"))
    finally:
        flower.end()
        stack.close()
    assert not (tmp_path / "elsewhere").exists()


def test_an_invocation_waits_until_it_is_sealed(place: Place) -> None:
    """Waiting, then sealed once a round has it; again waiting while its last row is not in it."""
    identity, other = make_identity(), make_identity()
    place.emit(started(identity))
    place.emit(completed(identity))
    place.emit(started(other))
    assert place.proof(identity.request_id) == "waiting"
    assert place.log() == ("0", "3")
    place.sealer.round()
    assert place.proof(identity.request_id) == "sealed"
    assert place.proof(other.request_id) == "sealed"
    assert place.log() == ("3", "0")
    place.emit(completed(other))
    assert place.proof(identity.request_id) == "sealed"
    assert place.proof(other.request_id) == "waiting"
    assert place.log() == ("3", "1")
    place.sealer.round()
    assert place.proof(other.request_id) == "sealed"


def test_what_has_left_the_memory_is_said_to_be_in_the_ledger(place: Place) -> None:
    """Once retention has taken the sealed rows, the page and the list say where they are."""
    identity, last = make_identity(), make_identity()
    place.emit(started(identity))
    place.emit(completed(identity))
    place.emit(started(last))
    place.sealer.round()
    (kept,) = place.stack.rows(request_id=last.request_id)
    assert place.stack.memory.trim(TENANT, str(kept.position)) == 2
    page = place.flower.ask(f"/audit/invocation/{identity.request_id}")
    assert page.status == 200
    assert "they are in the ledger" in page.text
    assert "Older rows have left the memory" in place.flower.ask("/audit/list").text
    assert place.card("/audit", "Ledger") == "configured"
