"""Each protection of what is kept or shown is needed. Two files, which can run side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.canary.host import host
from tests.integration.canary.protections import PROTECTIONS, TOLD
from tests.integration.canary.report import report


@pytest.mark.parametrize("name", [n for n, p in PROTECTIONS.items() if p.channel not in TOLD])
def test_each_protection_is_needed(tmp_path: Path, name: str) -> None:
    """Switched off, a secret shows up where the protection stood."""
    protection = PROTECTIONS[name]
    with host(tmp_path) as found:
        found.reduced(name, protection)
        documents = [d for d in found.documents() if d.channel == protection.channel]
        assert f"{protection.channel}: " in report(found, documents)
