"""audit/ledger: names that no emit of ours writes stop nobody's sealing, and write no line."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import redis

from audit.embedded import EmbeddedServer
from audit.memory import open_memory
from tests.sealing import check, emit, log_of, seal, two_tenants
from tests.support import TENANT

pytestmark = pytest.mark.usefixtures("no_flush")


def test_a_name_that_is_no_text_in_the_list_of_tenants_stops_nobody(tmp_path: Path) -> None:
    """Nor does one with a line break write a line of its own into the file of tenants."""
    with (
        EmbeddedServer() as server,
        closing(open_memory(server.url, timeout=10)) as memory,
        redis.Redis.from_url(server.url) as client,
    ):
        emit(memory, TENANT, 4, 1)
        client.sadd("audit:tenants", b"\xff", b"evil\nname x")
        did = seal(memory, tmp_path / "a")
        assert (did.rows, did.faults) == (4, {})
        assert "evil" not in (tmp_path / "a" / "tenants").read_text(encoding="utf-8")
        assert not [f for f in check(memory, tmp_path / "a").findings() if f.log == log_of(TENANT)]


def test_a_line_of_tenants_that_is_no_text_stops_nobody(tmp_path: Path) -> None:
    """The others are sealed; verifying says that a line is strange."""
    memory = two_tenants(tmp_path / "a")
    with (tmp_path / "a" / "tenants").open("ab") as lines:
        lines.write(b"\xff x\n")
    emit(memory, TENANT, 2, 4)
    did = seal(memory, tmp_path / "a")
    assert (did.rows, did.faults) == (2, {})
