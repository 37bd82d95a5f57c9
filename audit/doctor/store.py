"""Checks of the memory: reachable, writable, fit, its clock, a keeper, orphans."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from audit.board.line import text
from audit.board.overview import held_leases
from audit.doctor.check import Check, Probe, bad, named, ok, warn
from audit.errors import MemoryUnsuitableError
from audit.keeper import ROLE
from audit.memory.base import AuditMemory
from audit.row import AuditRow

#: Seconds by which two clocks may differ before rows look out of order.
SKEW_WARN: Final = 1.0
#: Seconds beyond which a range of times loses rows.
SKEW_BAD: Final = 3600.0
#: Seconds after the end of a lease within which a keeper closes; then nobody does.
KEEPER_SECONDS: Final = 30.0
#: Open invocations looked at, the oldest.
OPEN: Final = 200

#: Seconds after which what a proof wrote is gone, had it not been taken back.
_PROOF_SECONDS: Final = 10.0
_REACH: Final = "start the memory, or mend AUDIT_MEMORY_URL: until then every skill is refused"
_WRITE: Final = (
    "see the memory's own log, its disk, its maxmemory, whether it is a replica, and whether the"
    " user in AUDIT_MEMORY_URL may write: until it takes writes every skill is refused"
)


def store_probes(memory: AuditMemory, lease_seconds: float) -> list[Probe]:
    """The checks that ask the memory.

    Args:
        memory: opened with a short timeout.
        lease_seconds: how long leases last (``AUDIT_LEASE_SECONDS``).
    """
    return [
        Probe(name="memory", look=lambda: reachable(memory), advice=_REACH),
        Probe(name="writes", look=lambda: writes(memory), advice=_WRITE),
        Probe(name="durability", look=lambda: durability(memory), advice=_REACH),
        Probe(name="clock", look=lambda: clock(memory), advice=_REACH),
        Probe(name="keeper", look=lambda: keeper(memory), advice=_REACH),
        Probe(name="leases", look=lambda: leases(memory, lease_seconds), advice=_REACH),
    ]


def reachable(memory: AuditMemory) -> Check:
    memory.store_time()
    return ok("memory", f"{memory.name} answers")


def writes(memory: AuditMemory) -> Check:
    """Whether a row could be stored: a server may answer, and yet be full or a replica.

    Written is a leadership of nobody, which is taken back, and otherwise ends by itself.
    """
    role = f"doctor-{uuid4()}"
    memory.lead(role, role, _PROOF_SECONDS)
    memory.give_up(role, role)
    return ok("writes", f"{memory.name} takes writes")


def durability(memory: AuditMemory) -> Check:
    """Whether the server evicts nothing and keeps rows as durably as the URL asks for."""
    name, asked = "durability", memory.durability
    try:
        memory.check()
    except MemoryUnsuitableError as error:
        return bad(name, str(error), "change the server as it says: until then it gets no row")
    if asked == "server":
        return warn(
            name,
            "nothing is evicted; how durable rows are is left to the server",
            "put ?durability=always into AUDIT_MEMORY_URL, so that it is insisted on",
        )
    return ok(name, f"nothing is evicted, and the server keeps rows with durability={asked}")


def clock(memory: AuditMemory, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Check:
    """How far this machine's clock is from the memory's, beyond what the way there explains."""
    before = now()
    theirs = memory.store_time()
    after = now()
    half = (after - before) / 2
    off = (theirs - before - half).total_seconds()
    beyond = max(0.0, abs(off) - half.total_seconds())
    seen = f"the memory's clock is {abs(off):.3f} s {'ahead of' if off > 0 else 'behind'} ours"
    advice = "synchronise the clocks of both machines (NTP)"
    if beyond > SKEW_BAD:
        return bad("clock", seen, f"{advice}: `list --since` loses rows")
    if beyond > SKEW_WARN:
        return warn("clock", seen, f"{advice}: ages and durations are wrong by as much")
    return ok("clock", seen)


def keeper(memory: AuditMemory) -> Check:
    if memory.is_led(ROLE):
        return ok("keeper", "a keeper leads")
    return bad(
        "keeper",
        "no keeper leads",
        "run `celery -A ... audit keep`: without one, what a dead worker ran stays open, and"
        " nothing is sealed",
    )


def leases(memory: AuditMemory, lease_seconds: float) -> Check:
    """Whether everything that runs belongs to a process that gives a sign of life."""
    found = memory.open_page(None, OPEN)
    if found.damaged:
        places = named(f"{place.position} of tenant {place.tenant_id}" for place in found.damaged)
        seen = _seen(found.total, f"of these, no started row stands at {places}")
        return bad("leases", seen, "keep a copy of the memory, and run `audit verify`")
    held = held_leases(memory, found.rows)
    orphans = [row for row in found.rows if not held.get(text(row.meta.get("worker")) or "")]
    if not orphans:
        return ok("leases", _seen(found.total, "each by a process with a live lease"))
    now = memory.store_time()
    silent = {row.request_id: _silent(memory, row, now) for row in orphans}
    left = [name for name, seconds in silent.items() if seconds > lease_seconds + KEEPER_SECONDS]
    seen = _seen(found.total, f"without a live lease: {named(silent)}")
    if left:
        return bad("leases", seen, "see that a keeper leads, or run `audit reconcile`")
    return warn("leases", seen, "their worker died just now: a keeper closes them, look again")


def _silent(memory: AuditMemory, row: AuditRow, now: datetime) -> float:
    """Seconds since the last sign of life of whoever runs ``row``."""
    lived = memory.lived_ms(row, text(row.meta.get("worker")) or "") / 1000
    return (now - memory.stored_at(row)).total_seconds() - lived


def _seen(total: int, what: str) -> str:
    looked = f", of which the oldest {OPEN} were looked at" if total > OPEN else ""
    return f"running: {total}{looked}; {what}" if total else "nothing is running"
