"""What a verification reads: which logs there are, and which checkpoints have to be up to date.

A sealer may be at work meanwhile: it swaps the checkpoint in the memory and writes the file moments
later, so both are read again until they agree, for two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from audit.errors import MemoryDamagedError
from audit.ledger.checkpoint import origin_of
from audit.ledger.claims import Claimed, Trust, log_of, read_claim
from audit.ledger.finding import META, Finding, Kind, Source
from audit.ledger.held_rows import Positions, SealedMemory
from audit.ledger.position_check import last_apart
from audit.ledger.subject import Limits
from audit.ledger.tenant_reads import ReadMemory

_TRIES: Final = 20
_PAUSE: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What to verify, and against what.

    Attributes:
        trust: whose signatures count.
        ledger: the folder of the ledger, or a copy of it.
        memory: where the rows are.
        tenant: this tenant only, and the meta log.
        given: checkpoints (signed notes) that were kept elsewhere.
        secret: of the pseudonyms, where it is at hand.
        limits: what is still fine.
        pause: waits so many seconds, where a sealer may be at work between two writes.
    """

    trust: Trust
    ledger: Path | None = None
    memory: ReadMemory | None = None
    tenant: str | None = None
    given: tuple[bytes, ...] = ()
    secret: bytes | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    pause: Callable[[float], None] = time.sleep


class KnownLogs:
    """Every log that anything knows of."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._tenants = read_tenants(sources.ledger)

    def logs(self, gathered: Iterable[str]) -> dict[str, str | None]:
        """Every log that anything knows of, with its tenant where that is known."""
        logs: dict[str, str | None] = dict.fromkeys([*self._folders(), *gathered])
        # After the folders: a sealer writes the line of a tenant down before anything of its log.
        self._tenants = read_tenants(self._sources.ledger)
        logs |= {log: None if self._is_foreign(log) else of for log, of in self._tenants.items()}
        wanted = self._sources.tenant
        for tenant in [*self.memory_tenants(), *([wanted] if wanted else [])]:
            if (log := self.log_of_tenant(tenant)) is not None:
                logs[log] = tenant
        for raw in self._sources.given:
            if (named := log_of(raw)) is not None:
                logs.setdefault(named, None)
        logs.pop(META, None)
        return logs if wanted is None else {k: v for k, v in logs.items() if v == wanted}

    def strays(self, log: str, tenant: str | None) -> Iterator[Finding]:
        """What is wrong with whose log it is, where the secret or a memory tells."""
        found = partial(Finding, source=Source.LEDGER, log=log, tenant=tenant)
        if self._is_foreign(log):
            text = "the file tenants names a tenant whose log this is not"
            yield found(kind=Kind.ALTERED, text=text)
        elif tenant is None and self._sources.ledger and self._sources.memory:
            text = (
                "nothing says whose log this is, neither the memory nor the file tenants, so"
                " nothing of it is sealed any more, and how much waits for that is not known"
            )
            yield found(kind=Kind.MISSING, text=text)

    def _is_foreign(self, log: str) -> bool:
        """Whether its line in the file ``tenants`` is not right, as the secret tells."""
        tenant = self._tenants.get(log)
        return tenant is not None and self._pseudonym(tenant) not in (None, log)

    def _pseudonym(self, tenant: str) -> str | None:
        prefix, secret = self._sources.trust.prefix, self._sources.secret
        if secret is None or not prefix:
            return None
        return origin_of(prefix, tenant, secret).rpartition("/")[2]

    def _folders(self) -> Iterator[str]:
        ledger = self._sources.ledger
        for folder in sorted(ledger.iterdir()) if ledger and ledger.is_dir() else ():
            if (folder / "checkpoint").exists() or (folder / "tile").is_dir():
                yield folder.name

    def memory_tenants(self) -> list[str]:
        memory, wanted = self._sources.memory, self._sources.tenant
        found = memory.tenants() if memory else []
        return [tenant for tenant in found if wanted in (None, tenant)]

    def log_of_tenant(self, tenant: str) -> str | None:
        memory, ledger = self._sources.memory, self._sources.ledger
        raw = _note(memory, tenant) if memory else None
        if (own := self._pseudonym(tenant)) is not None:
            kept = own in self._tenants or (ledger is not None and (ledger / own).is_dir())
            return own if kept or raw is not None else None
        for log, other in self._tenants.items():
            if other == tenant:
                return log
        return None if raw is None else log_of(raw)


# --- checkpoints ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The checkpoints of a log in both places, of one moment."""

    in_memory: bytes | None
    in_file: bytes | None
    position: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What findings of a log hold for: until one of these has changed."""

    in_memory: bytes | None
    in_file: bytes | None
    trimmed: str | None


def state_of(sources: Sources, log: str, tenant: str | None) -> State:
    """As of now. Whoever prunes has a row sealed first, so that a checkpoint tells of it."""
    memory, ledger = sources.memory, sources.ledger
    in_file = _content(ledger / log / "checkpoint") if ledger else None
    if memory is None or tenant is None:
        return State(None, in_file, None)
    return State(memory.sealed(tenant), in_file, memory.trimmed(tenant))


def held(sources: Sources, log: str, tenant: str | None, source: Source) -> Iterator[Claimed]:
    """The checkpoints that have to be up to date: the file's and the memory's."""
    trust, now = sources.trust, _snapshot(sources, log, tenant)
    if now.in_file is not None:
        yield read_claim(now.in_file, log, source, "the file checkpoint", trust)
    elif sources.ledger is not None:
        text = f"{log}/checkpoint is not there"
        yield Claimed(None, Finding(kind=Kind.MISSING, source=source, log=log, text=text))
    if now.in_memory is not None:
        name = "the checkpoint in the memory"
        claimed = read_claim(now.in_memory, log, Source.MEMORY, name, trust)
        yield claimed
        if claimed.claim is not None:
            yield from _position(sources, log, tenant, source, claimed.claim.size, now.position)
    elif sources.memory is not None and tenant is not None:
        text = "the memory has no checkpoint of this log"
        gone = Finding(kind=Kind.ROLLBACK, source=Source.MEMORY, log=log, index=0, text=text)
        yield Claimed(None, gone)


def _position(
    sources: Sources, log: str, tenant: str | None, source: Source, size: int, position: str | None
) -> Iterator[Claimed]:
    """What is wrong with the position beside the memory's checkpoint; the meta log has none."""
    if sources.ledger is None or tenant is None or source is Source.META:
        return
    positions = Positions(sources.ledger / log, size)
    if (apart := last_apart(log, tenant, source, positions, size, position)) is not None:
        yield Claimed(None, apart)


def _snapshot(sources: Sources, log: str, tenant: str | None) -> _Snapshot:
    """Both checkpoints; a sealer may be at work, so they are read again until they agree."""
    now = _Snapshot(None, None)
    for _ in range(_TRIES):
        memory, ledger = sources.memory, sources.ledger
        in_memory, position = _in_memory(memory, tenant) if memory and tenant else (None, None)
        in_file = _content(ledger / log / "checkpoint") if ledger else None
        now = _Snapshot(in_memory, in_file, position)
        if memory is None or ledger is None or not tenant or _alike(now):
            break
        sources.pause(_PAUSE)
    return now


def _in_memory(memory: SealedMemory, tenant: str) -> tuple[bytes | None, str | None]:
    """The checkpoint in the memory and the position that was swapped in with it."""
    note, position = memory.sealed(tenant), memory.sealed_position(tenant)
    for _ in range(_TRIES):
        if (again := memory.sealed(tenant)) == note:
            break
        note, position = again, memory.sealed_position(tenant)
    return note, position


def _note(memory: SealedMemory, tenant: str) -> bytes | None:
    """The checkpoint in the memory; nothing in it where that cannot be read, for there is one.

    Whoever checks the log asks for it again, and is told what is wrong with it.
    """
    try:
        return memory.sealed(tenant)
    except MemoryDamagedError:
        return b""


def given(sources: Sources, log: str) -> list[Claimed]:
    """The checkpoints of a log that whoever verifies has brought along."""
    return [
        read_claim(raw, log, Source.GIVEN, "the given checkpoint", sources.trust)
        for raw in sources.given
        if log_of(raw) == log
    ]


def cosigned(sources: Sources) -> list[Claimed]:
    """The newest checkpoint of the meta log that a witness has cosigned, mostly an older one.

    It has to be read before the newest one is, so that it cannot have overtaken it.
    """
    raw = _content(sources.ledger / META / "checkpoint.cosigned") if sources.ledger else None
    if raw is None:
        return []
    return [read_claim(raw, META, Source.META, "the cosigned checkpoint", sources.trust)]


def meta_is_known(sources: Sources) -> bool:
    """Whether there is anything of a meta log that can be held against files."""
    memory, ledger = sources.memory, sources.ledger
    if ledger is None:
        return False
    folder, names = ledger / META, ("checkpoint", "checkpoint.cosigned", "tile")
    return (
        any((folder / name).exists() for name in names)
        or (memory is not None and _note(memory, META) is not None)
        or any(log_of(raw) == META for raw in sources.given)
    )


def _alike(now: _Snapshot) -> bool:
    """Whether both are one checkpoint, whatever witnesses have added to one of them."""
    if now.in_file is None or now.in_memory is None:
        return False
    return now.in_file.partition(b"\n\n")[0] == now.in_memory.partition(b"\n\n")[0]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def read_tenants(ledger: Path | None) -> dict[str, str]:
    """Which tenant's a log is, from the operator's file; an outsider does not have it."""
    raw = (_content(ledger / "tenants") if ledger else None) or b""
    lines = (line.split() for line in raw.decode("utf-8", "replace").splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2}
