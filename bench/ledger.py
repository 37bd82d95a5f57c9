"""What the ledger costs: sealing and verifying a history, the delay of a seal, what emits notice.

The sealer is a process of its own, as the keeper is. The rate is that of sealing a whole history at
once, reading it from the server included; that history is then verified, in this process, with the
server and without. The delay is that of rows which come at a steady pace,
from the end of their emit until the memory has a checkpoint that covers them. Emits beside a sealer
and without one take turns; what the sealer has to catch up with in between is not timed.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from audit import open_memory
from audit.embedded import EmbeddedServer
from audit.ledger.checkpoint import Checkpoint
from audit.ledger.claims import Trust
from audit.ledger.finding import Verdict
from audit.ledger.folder import LedgerFolder
from audit.ledger.note import Note
from audit.ledger.sources import Sources
from audit.ledger.verifier import verify
from audit.memory import AuditMemory
from audit.row import AuditRow
from bench.crew import turns
from bench.processes import BenchError, Program
from bench.report import mebibytes, micros, millis, table
from bench.stats import median_interval, paired_ratios, percentile
from bench.sweep import history, write
from bench.writer import TENANTS, rows

#: For every task of the throughput section: rows of the history, rows whose delay is measured, and
#: emits of one turn.
HISTORY_PER_TASK: Final = 100
DELAYED_PER_TASK: Final = 5
EMITS_PER_TASK: Final = 20
#: Rows a second whose delay is measured.
PACE: Final = 500
#: Seconds between two looks at the newest checkpoint.
LOOK: Final = 0.005
#: Checkpoints until the sealer has its size.
WARM_UP: Final = 2

RATE_AIM: Final = 20_000
VERIFY_AIM: Final = 50_000
DELAY_AIM: Final = 3.0
EMIT_AIM: Final = 1.15
FLAT: Final = 8 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealing:
    """What sealing a history took.

    Attributes:
        rows: how many.
        seconds: in all.
        held: resident bytes of the sealer after each checkpoint.
    """

    rows: int
    seconds: float
    held: list[int]

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def growth(self) -> int:
        """Bytes that the sealer grew by after it had its size."""
        warm = self.held[min(WARM_UP, len(self.held) - 1) :]
        return max(warm) - warm[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verifying:
    """What verifying that history took: how many rows were hashed again, in how many seconds."""

    what: str
    rows: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """All that was measured; delays and emits in seconds, the latter the median of each turn."""

    sealing: Sealing
    verifying: list[Verifying]
    delays: list[float]
    without: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


@contextmanager
def _sealer(**options: Any) -> Iterator[tuple[EmbeddedServer, Program, Path]]:
    with TemporaryDirectory(prefix="bench-") as folder, EmbeddedServer(**options) as server:
        directory = Path(folder)
        program = Program(
            "bench.sealer", server.url, str(directory / "ledger"), log=directory / "sealer.log"
        )
        try:
            program.answer()
            yield server, program, directory / "ledger"
        finally:
            program.end()


def measure(rounds: int, tasks: int) -> Ledger:
    """A history, then a steady pace, then turns of emits, each with a server of its own."""
    sealing, verifying = _history(HISTORY_PER_TASK * tasks)
    delays = _delays(DELAYED_PER_TASK * tasks)
    without, beside = _emits(rounds, EMITS_PER_TASK * tasks)
    return Ledger(
        sealing=sealing, verifying=verifying, delays=delays, without=without, beside=beside
    )


def _history(count: int) -> tuple[Sealing, list[Verifying]]:
    with _sealer(options={"appendonly": "no"}) as (server, program, folder):
        memory = open_memory(server.url, timeout=60)
        write(server.url, memory, history(count // 2, closed=True))
        sealing = Sealing(**_order(program, "all"))
        verifying = [
            _verified("files and memory", folder, memory),
            _verified("files alone", folder, None),
        ]
        memory.close()
    return sealing, verifying


def _verified(what: str, folder: Path, memory: AuditMemory | None) -> Verifying:
    trust = Trust(tuple(LedgerFolder(folder).keys()))
    began = time.perf_counter()
    report = verify(Sources(trust=trust, ledger=folder, memory=memory))
    seconds = time.perf_counter() - began
    if report.verdict is not Verdict.RIGHT:
        raise BenchError(f"the ledger does not verify: {next(report.findings(), None)}")
    rows = sum(log.checked for log in report.logs if log.tenant)
    return Verifying(what=what, rows=rows, seconds=seconds)


def _order(program: Program, word: str) -> Any:
    program.tell(word)
    return program.answer()


# --- the delay ------------------------------------------------------------------------------------


def _delays(count: int) -> list[float]:
    with _sealer() as (server, program, _):
        memory = open_memory(server.url, timeout=10)
        _order(program, "on")
        seen = _Seen(server.url, TENANTS[0], count)
        ends = list(_paced(memory, count))
        times = seen.until_all()
        _order(program, "off")
        memory.close()
    return [sealed - end for sealed, end in zip(times, ends, strict=True)]


def _paced(memory: AuditMemory, count: int) -> Iterator[float]:
    """Emit rows of one tenant at the pace; when each emit ended."""
    began = time.monotonic()
    for number, row in enumerate(islice(_of_first_tenant(), count)):
        time.sleep(max(0.0, began + number / PACE - time.monotonic()))
        memory.emit(row)
        yield time.monotonic()


def _of_first_tenant() -> Iterator[AuditRow]:
    return (row for row in rows() if row.tenant_id == TENANTS[0])


class _Seen:
    """Looks, in a thread, how many rows of a tenant are sealed, and when."""

    def __init__(self, url: str, tenant_id: str, count: int) -> None:
        self._memory = open_memory(url, timeout=10)
        self._tenant_id, self._count = tenant_id, count
        self._sizes: list[int] = []
        self._times: list[float] = []
        self._thread = threading.Thread(target=self._look)
        self._deadline = time.monotonic() + 60 + count / PACE
        self._thread.start()

    def until_all(self) -> list[float]:
        """When each of the rows was seen sealed."""
        self._thread.join()
        self._memory.close()
        if not self._sizes or self._sizes[-1] < self._count:
            raise BenchError("not all rows were sealed in time")
        return [self._times[bisect_right(self._sizes, row)] for row in range(self._count)]

    def _look(self) -> None:
        while time.monotonic() < self._deadline:
            if note := self._memory.sealed(self._tenant_id):
                self._times.append(time.monotonic())
                self._sizes.append(Checkpoint.parse(Note.parse(note).text).size)
                if self._sizes[-1] >= self._count:
                    return
            time.sleep(LOOK)


# --- what emits notice ----------------------------------------------------------------------------


def _emits(rounds: int, count: int) -> tuple[list[float], list[float]]:
    medians: tuple[list[float], list[float]] = ([], [])
    with _sealer() as (server, program, _):
        memory, endless = open_memory(server.url, timeout=10), rows()
        _timed(memory, list(islice(endless, count)))
        for number in range(rounds):
            for turn in turns(2, number):
                prepared = list(islice(endless, count))
                _order(program, "all")
                _order(program, "on" if turn else "all")
                medians[turn].append(percentile(_timed(memory, prepared), 50))
                _order(program, "off" if turn else "all")
        memory.close()
    return medians


def _timed(memory: AuditMemory, prepared: Sequence[AuditRow]) -> list[float]:
    took, clock = [], time.perf_counter
    for row in prepared:
        began = clock()
        memory.emit(row)
        took.append(clock() - began)
    return took


# --- what is printed ------------------------------------------------------------------------------


def report(measured: Ledger) -> str:
    parts = (
        _sealing(measured.sealing), _verifying(measured.verifying), _delay(measured.delays),
        _emit(measured),
    )  # fmt: skip
    return "\n\n".join(text for part in parts for text in part)


def raw(measured: Ledger) -> dict[str, Any]:
    """Every sample."""
    return asdict(measured)


def _sealing(sealing: Sealing) -> tuple[str, str]:
    head = ("the ledger of a history", "rows", "seconds", "rows/s", "growth MiB")
    figures = [
        f"{sealing.rows:,}",
        f"{sealing.seconds:.2f}",
        f"{sealing.rate:,.0f}",
        mebibytes(sealing.growth),
    ]
    rate = "reached" if sealing.rate >= RATE_AIM else "MISSED"
    flat = "flat" if sealing.growth < FLAT else "NOT flat"
    return (
        table(head, [["sealing", *figures]]),
        f"Aim: {RATE_AIM:,} rows/s sealed: {rate}. Memory of the sealer (under"
        f" {FLAT // 2**20} MiB after {WARM_UP} checkpoints): {flat}.",
    )


def _verifying(verifying: Sequence[Verifying]) -> tuple[str, str]:
    head = ("verifying it", "rows", "seconds", "rows/s")
    rows = [[v.what, f"{v.rows:,}", f"{v.seconds:.2f}", f"{v.rate:,.0f}"] for v in verifying]
    word = "reached" if min(v.rate for v in verifying) >= VERIFY_AIM else "MISSED"
    return table(head, rows), f"Aim: {VERIFY_AIM:,} rows/s verified: {word}."


def _delay(delays: Sequence[float]) -> tuple[str, str]:
    head = ("ms from emit to sealed", "p50", "p95", "max")
    figures = [millis(percentile(delays, percent)) for percent in (50, 95, 100)]
    word = "within" if max(delays) <= DELAY_AIM else "OVER"
    return (
        table(head, [[f"a row, {PACE} rows/s", *figures]]),
        f"Aim: sealed at most {DELAY_AIM:.0f} s after its emit: {word}.",
    )


def _emit(measured: Ledger) -> tuple[str, str]:
    head = ("us per emit, median of the rounds' p50", "p50")
    both = (("emit, no sealer", measured.without), ("emit beside a sealer", measured.beside))
    ratios = paired_ratios(measured.beside, measured.without)
    ratio, interval = percentile(ratios, 50), median_interval(ratios)
    where = f" ({interval.low:.2f} to {interval.high:.2f})" if interval else ""
    word = "within" if ratio <= EMIT_AIM else "OVER"
    return (
        table(head, [[name, micros(percentile(p50s, 50))] for name, p50s in both]),
        f"Beside a sealer an emit takes {ratio:.2f} times as long{where}, the median of"
        f" {len(ratios)} rounds' ratios. Aim: {EMIT_AIM:.2f}: {word}.",
    )
