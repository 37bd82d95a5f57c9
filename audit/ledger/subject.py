"""What is to be checked of one log, and what is still fine there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit.ledger.claims import Claim, Trust
from audit.ledger.finding import Finding, Kind, Source
from audit.ledger.held_rows import SealedMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What is still fine.

    Attributes:
        open_for: seconds that an invocation may be without its completed row.
        unsealed_for: seconds that a row may wait to be sealed.
        now: the wall clock.
    """

    open_for: float = 45.0
    unsealed_for: float = 60.0
    now: Callable[[], float] = time.time


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be checked.

    Attributes:
        log: its pseudonym.
        tenant: whose, if known.
        trust: whose signatures count.
        source: what findings about its files name.
        folder: of the log, where its files are to be read.
        memory: where the tenant's rows are to be read.
        claims: what checkpoints say, the one to hold the rows against first.
        older: further claims, by size: those of the meta log.
        limits: what is still fine.
        began: when its checkpoints were read, in seconds.
    """

    log: str
    tenant: str | None
    trust: Trust
    source: Source = Source.LEDGER
    folder: Path | None = None
    memory: SealedMemory | None = None
    claims: Sequence[Claim] = ()
    older: Iterable[Claim] = ()
    limits: Limits = field(default_factory=Limits)
    began: float = 0.0

    @property
    def claim(self) -> Claim:
        return self.claims[0]

    def finding(self, kind: Kind, source: Source, **more: Any) -> Finding:
        return Finding(kind=kind, source=source, log=self.log, tenant=self.tenant, **more)
