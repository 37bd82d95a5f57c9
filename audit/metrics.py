"""Every instrument in one place (S1.11).

Instruments come from the OpenTelemetry API: without an SDK they cost next to nothing, and they
begin to count as soon as a process sets a MeterProvider, or is bound to one (:func:`bind`). Nothing
that must hold rides on them.

What ``skill_invoked_total`` counts: a body's own ending by the process that closes it, an ending
that is seen from outside by whoever closes the invocation with it. So the sums over all processes
are the rows of the kind ``skill.invoked_completed``, but for what a killed process had not yet
exported. ``skill_rows_total`` is counted in the memory, and no kill takes anything from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

Stage = Literal["start", "completed"]

#: Bucket bounds in milliseconds; the budget of an emit is 50.
_EMIT_BOUNDS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2000)
_DURATION_BOUNDS: Final = (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 60_000, 600_000, 3_600_000)

# No units: through Prometheus "ms" would be spelled a second time, as ..._ms_milliseconds.
_COUNTERS: Final = {
    "skill_invoked_total": "Invocations that ended, by skill and outcome",
    "skill_invoked_late_total": "Completions of invocations that had been closed already",
    "skill_invoked_refused_total": "Invocations that were not allowed to start",
    "skill_audit_emit_failures_total": "Rows the memory did not take (sev-1)",
    "skill_abandoned_total": "Invocations whose process was gone (sev-2)",
    "skill_ledger_sealed_rows_total": "Rows sealed",
    "skill_rows_total": "Rows in the memory, by tenant and kind, since this keeper began to count",
}
_HISTOGRAMS: Final = {
    "skill_invoked_duration_ms": ("How long skills ran, in milliseconds", _DURATION_BOUNDS),
    "skill_audit_emit_duration_ms": (
        "How long one emit took, in milliseconds; the budget is 50 at the 95th percentile",
        _EMIT_BOUNDS,
    ),
}
_GAUGES: Final = {
    "skill_running": "Invocations started and not completed",
    "skill_oldest_running_seconds": "Age of the oldest of them",
    "skill_orphaned": "Those of them without a live lease, by tenant",
    "skill_orphaned_seconds": "For how long a tenant's longest has been seen without a live lease",
    "skill_started_minus_completed": "Started minus completed rows of five minutes, by tenant",
    "skill_rows_behind": "1 while a keeper has rows yet to count, else 0",
    "skill_spooled": "Rows that wait in this host's spool",
    "skill_spooled_bytes": "Bytes that wait in this host's spool",
    "skill_keeper_leads": "1 for the keeper that leads, 0 for one that waits",
    "skill_last_sweep_timestamp_seconds": "When the reconciler looked last, Unix time",
    "skill_ledger_witnesses_failing": "Witnesses that did not cosign when they were last asked",
    "skill_ledger_cosigned_timestamp_seconds": "When all sealed rows were last cosigned, Unix time",
    "skill_ledger_last_seal_timestamp_seconds": "When the sealer last sealed all it saw, Unix time",
    "skill_ledger_unsealed_rows": "Rows seen and not sealed, counted up to 1,000 a tenant",
    "skill_ledger_faults": "Logs that cannot be sealed (sev-1)",
    "skill_ledger_findings": "Findings of an audit verify that has just ended (sev-1)",
}
#: How late the keeper that leads is, by its own monotonic clock; asked for whenever it is exported.
_LATE: Final = "skill_keeper_late_seconds"
#: What only the keeper that leads knows; of one that leads no longer, it would be an old story.
_LEADERS: Final = (
    "skill_running",
    "skill_oldest_running_seconds",
    "skill_orphaned",
    "skill_orphaned_seconds",
    "skill_ledger_witnesses_failing",
    "skill_ledger_unsealed_rows",
    "skill_ledger_faults",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphans:
    """A tenant's open invocations whose process holds no lease.

    Attributes:
        count: how many.
        seconds: for how long the longest of them has been seen so.
    """

    count: int
    seconds: float


class _Gauges:
    """What was seen last, by the one label ``tenant_id`` or none."""

    def __init__(self) -> None:
        self._values: dict[str, Mapping[str | None, float]] = {}
        self._swept: float | None = None

    def put(self, **values: float) -> None:
        self._values.update({name: {None: value} for name, value in values.items()})

    def put_tenants(self, name: str, values: Mapping[str, float]) -> None:
        # The highest first: an SDK keeps some 2,000 series apart and adds up the rest.
        ranked = sorted(values.items(), key=lambda item: -item[1])
        self._values[name] = dict[str | None, float](ranked)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._values.pop(name, None)

    def swept(self) -> None:
        self._swept = time.monotonic()

    def clear(self) -> None:
        self._values.clear()
        self.leads_no_more()

    def leads_no_more(self) -> None:
        self.forget(_LEADERS)
        self._swept = None

    def observed(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            values = self._values.get(name, {})
            return [Observation(v, {"tenant_id": t} if t else {}) for t, v in values.items()]

        return observe

    def late(self, _: CallbackOptions) -> Iterable[Observation]:
        since = self._swept
        return [] if since is None else [Observation(time.monotonic() - since)]


_gauges: Final = _Gauges()


class _Instruments:
    """All instruments, of one meter."""

    def __init__(self, meter: Meter) -> None:
        self.counters = {
            name: meter.create_counter(name, description=text) for name, text in _COUNTERS.items()
        }
        self.histograms = {
            name: meter.create_histogram(
                name, description=text, explicit_bucket_boundaries_advisory=bounds
            )
            for name, (text, bounds) in _HISTOGRAMS.items()
        }
        for name, text in _GAUGES.items():
            meter.create_observable_gauge(name, [_gauges.observed(name)], description=text)
        meter.create_observable_gauge(
            _LATE, [_gauges.late], description="Seconds since the keeper that leads last swept"
        )

    def add(self, name: str, amount: int, **labels: str) -> None:
        self.counters[name].add(amount, labels)

    def record(self, name: str, value: float, **labels: str) -> None:
        self.histograms[name].record(value, labels)


_instruments = _Instruments(metrics.get_meter("audit"))


def bind(provider: metrics.MeterProvider) -> None:
    """Count in the meters of ``provider`` from now on, and know nothing of before.

    For a process that was forked from one that counts, and for one that must not set the global
    provider because it will fork.
    """
    global _instruments
    _gauges.clear()
    _instruments = _Instruments(provider.get_meter("audit"))
    # A counter that first appears with its first failure shows no increase.
    for stage in ("start", "completed"):
        _instruments.add("skill_audit_emit_failures_total", 0, stage=stage)


def skill_invoked(skill_id: str, outcome: str, duration_ms: int) -> None:
    """One invocation ended."""
    _instruments.add("skill_invoked_total", 1, skill_id=skill_id, outcome=outcome)
    _instruments.record("skill_invoked_duration_ms", duration_ms, skill_id=skill_id)


def closed_from_outside(payload: Mapping[str, object]) -> None:
    """A row that somebody else than the running body wrote has closed its invocation."""
    skill_invoked(
        str(payload["skill_id"]), str(payload["outcome"]), int(str(payload["duration_ms"]))
    )


def abandoned(payload: Mapping[str, object]) -> None:
    """A row has closed an invocation whose process was gone; at once, whatever ends the sweep."""
    closed_from_outside(payload)
    _instruments.add("skill_abandoned_total", 1)


def skill_late(skill_id: str) -> None:
    """A completion came after its invocation had been closed; that was counted already."""
    _instruments.add("skill_invoked_late_total", 1, skill_id=skill_id)


def skill_refused(skill_id: str, reason: str) -> None:
    """One invocation was not allowed to start."""
    _instruments.add("skill_invoked_refused_total", 1, skill_id=skill_id, reason=reason)


def emit_failed(stage: Stage) -> None:
    """The memory did not take a row: sev-1."""
    _instruments.add("skill_audit_emit_failures_total", 1, stage=stage)


def emit_took(stage: Stage, milliseconds: float) -> None:
    """One emit took so long, failed or not."""
    _instruments.record("skill_audit_emit_duration_ms", milliseconds, stage=stage)


def leads(yes: bool) -> None:
    """Whether this keeper leads just now."""
    _gauges.put(skill_keeper_leads=int(yes))
    if yes:
        _instruments.add("skill_abandoned_total", 0)
    else:
        _gauges.leads_no_more()


def swept(*, running: int, oldest_seconds: float, orphans: Mapping[str, Orphans]) -> None:
    """The reconciler looked once; ``orphans`` by tenant."""
    _gauges.put(
        skill_running=running,
        skill_oldest_running_seconds=oldest_seconds,
        skill_last_sweep_timestamp_seconds=time.time(),
    )
    _gauges.put_tenants("skill_orphaned", {t: seen.count for t, seen in orphans.items()})
    _gauges.put_tenants("skill_orphaned_seconds", {t: seen.seconds for t, seen in orphans.items()})
    _gauges.swept()


def arrived(tenant_id: str, kinds: Mapping[str, int]) -> None:
    """So many rows of each kind stand in a tenant's trail that were not counted before."""
    for kind, count in kinds.items():
        _instruments.add("skill_rows_total", count, tenant_id=tenant_id, kind=kind)


def balance(by_tenant: Mapping[str, int], *, behind: bool) -> None:
    """Started minus completed rows of five minutes, and whether more wait to be counted."""
    _gauges.put_tenants("skill_started_minus_completed", by_tenant)
    _gauges.put(skill_rows_behind=int(behind))


def spooled(rows: int, size: int) -> None:
    """So many rows, and bytes, wait in this host's spool."""
    _gauges.put(skill_spooled=rows, skill_spooled_bytes=size)


def witnessed(*, failing: int) -> None:
    """The witnesses were asked once, or had nothing to cosign."""
    _gauges.put(skill_ledger_witnesses_failing=failing)
    if not failing:
        _gauges.put(skill_ledger_cosigned_timestamp_seconds=time.time())


def sealed(*, rows: int, waiting: int, faults: int) -> None:
    """The sealer went round once."""
    _gauges.put(skill_ledger_unsealed_rows=waiting, skill_ledger_faults=faults)
    if not waiting and not faults:
        _gauges.put(skill_ledger_last_seal_timestamp_seconds=time.time())
    if rows:
        _instruments.add("skill_ledger_sealed_rows_total", rows)


def verified(*, findings: int) -> None:
    """The ledger was verified once."""
    _gauges.put(skill_ledger_findings=findings)


def seal_failed() -> None:
    """Nothing can be sealed: a fault of the ledger as a whole."""
    _gauges.put(skill_ledger_faults=1)
