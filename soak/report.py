"""What a soak is told by: a table by tenths of the run, the verdict, and JSON."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.report import mebibytes, table
from soak.judge import SPARE, Check
from soak.run import Outcome, rate
from soak.sample import Role, Sample

WIDTH: Final = 46
HEAD: Final = (
    "after",
    "per s",
    *(f"{role} MiB" for role in Role),
    "connections",
    "handles",
    "threads",
    "spool",
    "rows",
)


def tenths(samples: Sequence[Sample]) -> str:
    """One line a tenth: medians, of all children together; of the spool the most."""
    parts = [
        part
        for number in range(10)
        if (part := samples[len(samples) * number // 10 : len(samples) * (number + 1) // 10])
    ]
    return table(HEAD, [_line(part) for part in parts])


def _line(samples: Sequence[Sample]) -> list[str]:
    first, last = samples[0], samples[-1]
    seconds = last.seconds - first.seconds
    return [
        f"{last.done:,}",
        f"{(last.done - first.done) / seconds:,.0f}" if seconds else "-",
        *(_memory(samples, role) for role in Role),
        _median([sample.connections for sample in samples]),
        _median([sum(held.handles for held in sample.held) for sample in samples]),
        _median([sum(held.threads for held in sample.held) for sample in samples]),
        str(max(sample.spool for sample in samples)),
        f"{max(sample.rows or 0 for sample in samples):,}",
    ]


def _memory(samples: Sequence[Sample], role: Role) -> str:
    sizes = [held.uss for sample in samples for held in sample.held if held.role is role]
    return mebibytes(statistics.median(sizes)) if sizes else "-"


def _median(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):g}" if known else "-"


def verdict(outcome: Outcome) -> str:
    """What is flat and what is not, and how the account came out."""
    return "\n".join(f"{name:<{WIDTH}}{value}" for name, value in _lines(outcome))


def _lines(outcome: Outcome) -> Iterator[tuple[str, object]]:
    audited = outcome.audited
    tally = audited.tally
    yield "calls published", f"{tally.published:,} of {outcome.plan.invocations:,}"
    yield "invocations (started rows)", f"{tally.started:,}"
    yield "  completed rows", f"{tally.completed:,}"
    yield "  told 503 and not run", f"{tally.refused:,}"
    for reason, count in sorted(tally.endings.items()):
        yield f"  closed as {reason}", f"{count:,}"
    yield "children after the first ones", outcome.recycled
    for kind, count in sorted(audited.faults.items()):
        yield f"  {kind}", count
    for check in outcome.checks:
        yield _named(check), _told(check)
    if not outcome.plan.memory_judged:
        yield "memory", "not judged: too few invocations, or no control"
    for rule, count in sorted(Counter(finding.rule for finding in tally.findings).items()):
        yield f"NOT RIGHT: {rule}", count
    yield "left when it should have been quiet", "; ".join(audited.left_open) or "nothing"
    yield "surprises", "; ".join(audited.surprises) or "none"
    yield "audit verify", audited.verified or "all is right"
    yield "invocations a second, audited and bare", _rates(outcome)
    yield "seconds", f"{outcome.seconds:.0f}"


def _rates(outcome: Outcome) -> str:
    return ", ".join(f"{rate(samples):.0f}" for samples in (outcome.audited.samples, outcome.bare))


def _of_memory(check: Check) -> bool:
    return check.limit > SPARE


def _named(check: Check) -> str:
    return f"{check.what}, KiB per 1,000" if _of_memory(check) else f"{check.what}, more"


def _told(check: Check) -> str:
    word = "flat" if check.flat else "NOT FLAT"
    if not _of_memory(check):
        return f"{check.measured:+g} (limit {check.limit:g}): {word}"
    measured, control, limit = (
        size / 1024 for size in (check.measured, check.control, check.limit)
    )
    return f"{measured:+.1f}, bare {control:+.1f} (limit {limit:g} more): {word}"


def write_json(path: Path, outcome: Outcome) -> None:
    """Everything, each sample included."""
    audited, tally = outcome.audited, outcome.audited.tally
    content = {
        "clean": outcome.clean,
        "plan": asdict(outcome.plan),
        "checks": [{**asdict(check), "flat": check.flat} for check in outcome.checks],
        "account": {
            **{name: getattr(tally, name) for name in ("published", "started", "completed")},
            "refused": tally.refused,
            "endings": tally.endings,
            "findings": [[found.rule, found.subject] for found in tally.findings],
        },
        "faults": audited.faults,
        "recycled": outcome.recycled,
        "left": list(audited.left_open),
        "surprises": list(audited.surprises),
        "verified": audited.verified,
        "seconds": outcome.seconds,
        "audited": [asdict(sample) for sample in audited.samples],
        "bare": [asdict(sample) for sample in outcome.bare],
    }
    path.write_text(json.dumps(content), encoding="utf-8")
