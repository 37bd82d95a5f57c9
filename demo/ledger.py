"""A ledger for the demo's own memory: a folder and new keys, gone with everything else.

Only a memory that the demo brings along gets one. Another may have a ledger already, and rows that
two ledgers seal are a finding in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from audit.ledger.keys import LedgerKeys, write_new

ORIGIN: Final = "demo.skill-host.invalid"


def new_ledger(directory: Path) -> Mapping[str, str]:
    """Make the keys below ``directory``; the settings of who seals or verifies, by variable."""
    keys = directory / "ledger.keys"
    write_new(LedgerKeys.generate(ORIGIN), keys)
    return {
        "AUDIT_LEDGER_DIR": str(directory / "ledger"),
        "AUDIT_LEDGER_KEYS": str(keys),
        "AUDIT_LEDGER_ORIGIN": ORIGIN,
    }
