"""Every instrument in one place (S1.11).

Instruments come from the OpenTelemetry API: without an SDK they cost next to nothing, and they
begin to count as soon as a process sets a MeterProvider. Nothing that must hold rides on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Literal

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

Stage = Literal["start", "completed"]

#: Bucket bounds in milliseconds; the budget of an emit is 50.
_EMIT_BOUNDS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2000)
_DURATION_BOUNDS: Final = (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 60_000, 600_000, 3_600_000)

_meter = metrics.get_meter("audit")

# No unit: through Prometheus "ms" would be spelled a second time, as ..._ms_milliseconds.
_invoked = _meter.create_counter(
    "skill_invoked_total", description="Invocations that ended, by skill and outcome"
)
_invoked_duration = _meter.create_histogram(
    "skill_invoked_duration_ms",
    description="How long skills ran, in milliseconds",
    explicit_bucket_boundaries_advisory=_DURATION_BOUNDS,
)
_emit_failures = _meter.create_counter(
    "skill_audit_emit_failures_total", description="Rows the memory did not take (sev-1)"
)
_emit_duration = _meter.create_histogram(
    "skill_audit_emit_duration_ms",
    description="How long one emit took, in milliseconds; the budget is 50 at the 95th percentile",
    explicit_bucket_boundaries_advisory=_EMIT_BOUNDS,
)
_refused = _meter.create_counter(
    "skill_invoked_refused_total", description="Invocations that were not allowed to start"
)


def skill_invoked(skill_id: str, outcome: str, duration_ms: int) -> None:
    """One invocation ended."""
    _invoked.add(1, {"skill_id": skill_id, "outcome": outcome})
    _invoked_duration.record(duration_ms, {"skill_id": skill_id})


def skill_refused(skill_id: str, reason: str) -> None:
    """One invocation was not allowed to start."""
    _refused.add(1, {"skill_id": skill_id, "reason": reason})


def emit_failed(stage: Stage) -> None:
    """The memory did not take a row: sev-1."""
    _emit_failures.add(1, {"stage": stage})


def emit_took(stage: Stage, milliseconds: float) -> None:
    """One emit took so long, failed or not."""
    _emit_duration.record(milliseconds, {"stage": stage})


class _Gauges:
    """What the keeper saw last; read by the metric reader whenever it exports."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        for name, description in _GAUGES.items():
            _meter.create_observable_gauge(name, [self._observe(name)], description=description)

    def put(self, **values: float) -> None:
        self._values.update(values)

    def _observe(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(self._values[name])] if name in self._values else []

        return observe


_GAUGES: Final = {
    "skill_running": "Invocations started and not completed",
    "skill_oldest_running_seconds": "Age of the oldest of them",
    "skill_spooled": "Rows that wait in this host's spool",
    "skill_last_sweep_timestamp_seconds": "When the reconciler looked last, Unix time",
    "skill_ledger_witnesses_failing": "Witnesses that did not cosign when they were last asked",
    "skill_ledger_cosigned_timestamp_seconds": "When all sealed rows were last cosigned, Unix time",
    "skill_ledger_last_seal_timestamp_seconds": "When the sealer last sealed all it saw, Unix time",
    "skill_ledger_unsealed_rows": "Rows seen and not sealed, counted up to 1,000 a tenant",
    "skill_ledger_faults": "Logs that cannot be sealed (sev-1)",
}
_gauges = _Gauges()
_abandoned = _meter.create_counter(
    "skill_abandoned_total", description="Invocations whose process was gone (sev-2)"
)
_sealed = _meter.create_counter("skill_ledger_sealed_rows_total", description="Rows sealed")


def swept(*, running: int, oldest_seconds: float, closed: int) -> None:
    """The reconciler looked once."""
    _gauges.put(
        skill_running=running,
        skill_oldest_running_seconds=oldest_seconds,
        skill_last_sweep_timestamp_seconds=time.time(),
    )
    if closed:
        _abandoned.add(closed)


def spooled(rows: int) -> None:
    """So many rows wait in this host's spool."""
    _gauges.put(skill_spooled=rows)


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
        _sealed.add(rows)
