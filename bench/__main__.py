"""The command: ``python -m bench``; ``--help`` tells the rest.

With ``--write`` the tables go into a document too, between the markers of their section.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from audit.errors import EmbeddedServerError
from bench import (
    board,
    emit,
    ledger,
    memory,
    privacy,
    queries,
    roundtrip,
    shape,
    stores,
    sweep,
    throughput,
)
from bench.peers import figures, race
from bench.processes import BenchError
from bench.report import environment
from bench.written import Document

MOST_ROUNDS: Final = 1000
MOST_TASKS: Final = 10_000
MOST_ROWS: Final = 100_000_000
MOST_WRITERS: Final = 100


def _throughput(rounds: int, tasks: int) -> tuple[str, Any]:
    batches = throughput.measure(rounds, tasks)
    return throughput.report(batches), throughput.raw(batches)


def _emit(rounds: int, tasks: int, writers: int = emit.WRITERS) -> tuple[str, Any]:
    emits = emit.measure(tasks, writers)
    return emit.report(emits), emit.raw(emits)


def _roundtrip(rounds: int, tasks: int) -> tuple[str, Any]:
    trips = roundtrip.measure(rounds, tasks)
    return roundtrip.report(trips), roundtrip.raw(trips)


def _memory(rounds: int, tasks: int) -> tuple[str, Any]:
    samples = memory.measure(rounds, tasks)
    return memory.report(samples), memory.raw(samples)


def _sweep(rounds: int, tasks: int) -> tuple[str, Any]:
    sweeps = sweep.measure(tasks)
    return sweep.report(sweeps), sweep.raw(sweeps)


def _privacy(rounds: int, tasks: int) -> tuple[str, Any]:
    measured = privacy.measure(tasks)
    return privacy.report(measured), privacy.raw(measured)


def _ledger(rounds: int, tasks: int) -> tuple[str, Any]:
    measured = ledger.measure(rounds, tasks)
    return ledger.report(measured), ledger.raw(measured)


def _board(rounds: int, tasks: int) -> tuple[str, Any]:
    looks = board.measure(rounds, tasks)
    return board.report(looks), board.raw(looks)


def _stores(rounds: int, tasks: int) -> tuple[str, Any]:
    measured = stores.measure(rounds, tasks)
    return stores.report(measured), stores.raw(measured)


def _queries(
    rounds: int, tasks: int, rows: int | None = None, kinds: Sequence[str] = queries.KINDS
) -> tuple[str, Any]:
    asked = queries.measure(kinds, rows or queries.ROWS_PER_TASK * tasks, rounds)
    return queries.report(asked), queries.raw(asked)


def _shape(rounds: int, tasks: int) -> tuple[str, Any]:
    shapes = shape.measure(rounds, tasks)
    return shape.report(shapes), shape.raw(shapes)


def _peers(rounds: int, tasks: int, names: Sequence[str] = ()) -> tuple[str, Any]:
    entries = race.measure(rounds, tasks, race.chosen(names))
    return figures.report(entries), race.raw(entries)


#: Each section measures, and gives what is printed and its samples.
SECTIONS: Final[dict[str, Callable[[int, int], tuple[str, Any]]]] = {
    "throughput": _throughput,
    "shape": _shape,
    "peers": _peers,
    "emit": _emit,
    "stores": _stores,
    "roundtrip": _roundtrip,
    "memory": _memory,
    "sweep": _sweep,
    "privacy": _privacy,
    "ledger": _ledger,
    "board": _board,
    "queries": _queries,
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    names = [options.only] if options.only else list(SECTIONS)
    document = Document(options.write, names) if options.write else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    samples: dict[str, Any] = {"environment": environment()}
    print("\n".join(f"{name}: {value}" for name, value in samples["environment"].items()))
    print(f"{options.rounds} rounds of {options.tasks} tasks, prefork with 2 children")
    kinds = [options.memory] if options.memory else queries.KINDS
    sections: dict[str, Callable[[int, int], tuple[str, Any]]] = {
        **SECTIONS,
        "emit": partial(_emit, writers=options.writers),
        "peers": partial(_peers, names=options.peers),
        "queries": partial(_queries, rows=options.rows, kinds=kinds),
    }
    for name in names:
        printed, samples[name] = sections[name](options.rounds, options.tasks)
        print(f"\n{printed}", flush=True)
        if document is not None:
            document.write(name, printed, samples["environment"], _command(options, name))
    if options.json is not None:
        options.json.write_text(json.dumps(samples), encoding="utf-8")


def _command(options: argparse.Namespace, section: str) -> str:
    """What measures that section alone, and the same."""
    size = f"--rounds {options.rounds} --tasks {options.tasks}"
    named = f" --peers {','.join(options.peers)}" if options.peers and section == "peers" else ""
    return f"python -m bench --only {section} {size}{named}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What the audit costs.")
    parser.add_argument(
        "--rounds",
        type=_up_to(MOST_ROUNDS),
        default=10,
        help="interleaved rounds (10); in the board section three times as many of each page,"
        " in the memory section twice as many batches",
    )
    parser.add_argument(
        "--tasks",
        type=_up_to(MOST_TASKS),
        default=1000,
        help="tasks of a round (1000); twice as many emits of each writer, a fifth as many of"
        " each round in the stores section, a tenth as many round"
        " trips, so many invocations of each batch in the memory section, 1,000 times as many in"
        " the history of the sweep section, a quarter as many turns in the privacy section, 100"
        " times as many sealed rows and 20 times as many emits of each turn in the ledger section,"
        " 1,000 times as many rows in the board section, 100 times as many in the queries section,"
        " half as many (and half the rounds) of each shape",
    )
    parser.add_argument("--only", choices=SECTIONS, help="one section instead of all")
    parser.add_argument(
        "--rows",
        type=_up_to(MOST_ROWS),
        metavar="N",
        help="rows of the history in the queries section",
    )
    parser.add_argument(
        "--writers",
        type=_up_to(MOST_WRITERS),
        default=emit.WRITERS,
        metavar="N",
        help=f"in the emit section, beside one alone, so many side by side ({emit.WRITERS})",
    )
    parser.add_argument(
        "--memory", choices=queries.KINDS, help="one kind in the queries section instead of all"
    )
    parser.add_argument(
        "--peers",
        type=_names,
        default=(),
        metavar="NAME,...",
        help=f"in the peers section, beside bare Celery, only these of {', '.join(race.NAMES)}",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="DOCUMENT",
        help="put the tables between the markers of their sections, e.g. in docs/performance.md",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(race.NAMES)):
        raise argparse.ArgumentTypeError(f"knows no {', '.join(unknown)}")
    return names


def _up_to(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"takes a whole number from 1 to {most}")
        return int(text)

    return number


if __name__ == "__main__":
    try:
        main()
    except (BenchError, EmbeddedServerError) as error:
        sys.exit(f"bench: {error}")
