"""The table of the race."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from bench.crew import Variant
from bench.peers.environment import lock, pinned
from bench.peers.peer import Peer, records
from bench.peers.race import Entry
from bench.report import micros, table
from bench.stats import median_interval, paired_ratios

HEAD: Final = (
    "the same job, a batch at a time",
    "start and end on record",
    "workers",
    "tasks/s",
    "of bare, median",
    "median's interval",
    "CPU us",
)
ROUGH: Final = (
    "Every figure is of a whole batch that was published before; what is no Celery takes its tasks"
    " out of PostgreSQL, so the comparison with it is rough. CPU is that of workers and servers,"
    " per task."
)


def report(entries: Sequence[Entry]) -> str:
    bare = next(entry for entry in entries if entry.contestant is Variant.BARE)
    rows = [_row(entry, bare) for entry in entries]
    return "\n\n".join((table(HEAD, rows), _judgement(entries), ROUGH))


def _row(entry: Entry, bare: Entry) -> list[str]:
    one = entry.contestant
    if isinstance(one, Peer):
        words = [_label(one), one.records, one.workers]
    else:
        words = [one.label, records(one), "prefork, 2 children"]
    return [*words, *(_figures(entry, bare) if entry.batches else [f"({entry.reason})", *3 * [""]])]


def _figures(entry: Entry, bare: Entry) -> list[str]:
    rates = [batch.rate for batch in entry.batches]
    ratios = paired_ratios(rates, [batch.rate for batch in bare.batches])
    found = median_interval(ratios)
    interval = f"{found.low:.2f} to {found.high:.2f}" if found else "too few rounds"
    compared = ("1", "") if entry is bare else (f"{statistics.median(ratios):.2f}", interval)
    return [f"{statistics.median(rates):,.0f}", *compared, micros(_cpu(entry))]


def _label(peer: Peer) -> str:
    if peer.package is None:
        return peer.label
    version = pinned(lock(peer.name).read_text(encoding="utf-8"), peer.package)
    return f"{peer.label} ({version})"


def _cpu(entry: Entry) -> float:
    spent = sum(batch.cpu.main + batch.cpu.children + batch.cpu.server for batch in entry.batches)
    return spent / sum(batch.count for batch in entry.batches)


def _judgement(entries: Sequence[Entry]) -> str:
    noise = [batch.disturbance for entry in entries for batch in entry.batches]
    return (
        f"{max(len(entry.batches) for entry in entries)} rounds. Other processes kept"
        f" {statistics.median(noise):.2f} cores busy during half of the batches, {max(noise):.2f}"
        " at most."
    )
