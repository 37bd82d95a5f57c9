"""All peers beside ours, in interleaved rounds, each as a ratio to bare Celery in the same round.

A peer that cannot be installed, started or brought to an end is left out from then on, with the
reason in its row; bare Celery or audited skills that fail are an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import psycopg

from bench.crew import WARM_UP, Hiring, Variant, turns
from bench.peers.peer import PEERS, Peer, name_of
from bench.peers.teams import hire
from bench.processes import BenchError
from bench.team import Batch, Team

Contestant = Peer | Variant

#: In the order of the table; bare Celery is the first, and always there.
CONTESTANTS: Final[Sequence[Contestant]] = (*Variant, *PEERS)
NAMES: Final = tuple(name_of(one) for one in CONTESTANTS)


class Absent(BenchError):
    """What a contestant needs does not exist for this machine."""


@dataclass(kw_only=True, slots=True)
class Entry:
    """One contestant: its team while it is up, its batches, why it is not among them."""

    contestant: Contestant
    team: Team | None = None
    batches: list[Batch] = field(default_factory=list)
    reason: str = ""


def chosen(names: Sequence[str]) -> list[Contestant]:
    """Those of that name, and bare Celery; all, if none is named."""
    wanted = {name_of(Variant.BARE), *(names or NAMES)}
    return [one for one in CONTESTANTS if name_of(one) in wanted]


def measure(rounds: int, tasks: int, contestants: Sequence[Contestant]) -> list[Entry]:
    """Every contestant once a round, each round beginning with the next one."""
    entries = [Entry(contestant=one) for one in contestants]
    with Hiring() as hiring:
        for entry in entries:
            with _or_left_out(entry):
                entry.team = _hired(entry.contestant, hiring)
        for entry in entries:
            _run(entry, min(tasks, WARM_UP))
            entry.batches.clear()
        for number in range(rounds):
            for turn in turns(len(entries), number):
                _run(entries[turn], tasks)
    return entries


def _hired(one: Contestant, hiring: Hiring) -> Team:
    if isinstance(one, Peer):
        return hire(one, hiring)
    if not one.possible:
        raise Absent("this machine has no PostgreSQL")
    return hiring.crew(one)


def _run(entry: Entry, tasks: int) -> None:
    if entry.team is not None:
        with _or_left_out(entry):
            entry.batches.append(entry.team.batch(tasks))


@contextmanager
def _or_left_out(entry: Entry) -> Iterator[None]:
    try:
        yield
    except (BenchError, psycopg.Error) as error:
        if isinstance(entry.contestant, Variant) and not isinstance(error, Absent):
            raise
        _leave_out(entry, error)


def _leave_out(entry: Entry, error: Exception) -> None:
    """Tell all on standard error, and the first line in the table: a log knows paths."""
    print(f"{entry.contestant.label}: {error}", file=sys.stderr, flush=True)
    entry.reason = str(error).partition("\n")[0].rstrip(":")
    entry.batches.clear()
    if entry.team is not None:
        entry.team.signal_end()
    entry.team = None


def raw(entries: Sequence[Entry]) -> dict[str, Any]:
    """Every sample, in seconds, or the reason why there is none."""
    return {
        entry.contestant.label: entry.reason or [asdict(batch) for batch in entry.batches]
        for entry in entries
    }
