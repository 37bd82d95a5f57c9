"""``make demo MEMORY=...``: the same tour with the rows in another kind of memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_demo(kind: str) -> subprocess.CompletedProcess[str]:
    named = ("AUDIT_", "CELERY_", "FLOWER_", "KEEP")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(named)}
    return subprocess.run(
        [sys.executable, "-m", "demo"], cwd=ROOT, env={**environ, "MEMORY": kind},
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_the_tour_ends_well_on_every_memory(kind: str) -> None:
    """Every call leaves its two rows there, panic and timeout among them."""
    done = run_demo(kind)
    assert done.returncode == 0, done.stdout + done.stderr
    total = re.search(r"together +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)", done.stdout)
    assert total is not None
    assert all(int(count) > 0 for count in total.groups())


def test_an_unknown_memory_is_refused() -> None:
    """It says which there are."""
    done = run_demo("paper")
    assert done.returncode == 1
    assert "valkey, postgres, sqlite" in done.stderr
