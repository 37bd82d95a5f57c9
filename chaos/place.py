"""Where one run takes place: its addresses, folders and periods, as workers read them too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

#: Settings that whoever starts a run has for workers of his own, and that would win over ours.
FOREIGN: Final = ("AUDIT_", "CELERY_", "OTEL_")

#: Names the folder of a run to its processes.
DIRECTORY: Final = "CHAOS_DIRECTORY"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One run's addresses and periods.

    Attributes:
        directory: everything the run writes is in here.
        calm: URL of the server of broker and results, without a database; it is never disturbed.
        memory: URL of the audit memory.
        lease: seconds a lease lasts.
        emit_timeout: seconds an emit may take.
        more: further variables of its processes.
    """

    directory: Path
    calm: str
    memory: str
    lease: float
    emit_timeout: float = 0.5
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @property
    def spool(self) -> Path:
        return self.directory / "spool"

    @property
    def broker(self) -> str:
        return f"{self.calm}/0"

    @property
    def results(self) -> str:
        return f"{self.calm}/1"

    def environ(self, outer: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment of a process of this run."""
        kept = {name: value for name, value in outer.items() if not name.startswith(FOREIGN)}
        return {
            **kept,
            DIRECTORY: str(self.directory),
            "CELERY_BROKER_URL": self.broker,
            "CELERY_RESULT_BACKEND": self.results,
            "AUDIT_MEMORY_URL": self.memory,
            "AUDIT_SPOOL_DIR": str(self.spool),
            "AUDIT_LEASE_SECONDS": str(self.lease),
            "AUDIT_EMIT_TIMEOUT": str(self.emit_timeout),
            "AUDIT_KEEPER_LISTEN": "off",  # two keepers, and whatever else this machine runs
            **self.more,
        }
