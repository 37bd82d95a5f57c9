"""The command: ``python -m soak [--invocations N] [--seed S] [--minutes M] ...``."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from audit.errors import EmbeddedServerError
from chaos.__main__ import number_from
from chaos.crew import ChaosError
from soak.leaks import Leak
from soak.report import tenths, verdict, write_json
from soak.run import run
from soak.stage import Plan

#: Where ``--minutes`` does not say how long: so many invocations a second.
PER_SECOND: Final = 400.0
SECONDS_PER_FAULT: Final = 5.0
#: Children a run goes through, the share of the control, and samples.
LIVES: Final = 100
CONTROL: Final = 0.25
SHORTEST_LIFE: Final = 20
MEMORY_FROM: Final = 20_000
SAMPLES: Final = 250
SHORTEST: Final = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    directory = options.keep or Path(tempfile.mkdtemp(prefix="soak-"))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ChaosError(f"{directory} is not empty: name another folder")
    plan = _plan(options)
    _say(f"seed {plan.seed}")
    outcome = run(plan, directory, _say)
    if outcome.bare:
        _say(f"\nbare Celery\n\n{tenths(outcome.bare)}")
    _say(f"\naudited\n\n{tenths(outcome.audited.samples)}\n\n{verdict(outcome)}")
    if options.json is not None:
        write_json(options.json, outcome)
    if not outcome.clean:
        _say(f"NOT CLEAN: see the logs in {directory}")
        return 1
    _say("flat, and everything accounted for")
    if options.keep is None:
        shutil.rmtree(directory)
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    seconds = options.invocations / PER_SECOND
    if options.minutes is not None:
        seconds = options.minutes * 60
    control = int(options.invocations * CONTROL)
    return Plan(
        invocations=options.invocations,
        control=control if options.control is None else options.control,
        seconds=seconds,
        faults=round(seconds / SECONDS_PER_FAULT) if options.faults is None else options.faults,
        life=max(SHORTEST_LIFE, options.invocations // LIVES)
        if options.life is None
        else options.life,
        memory_from=options.memory_from,
        every=max(SHORTEST, seconds / SAMPLES),
        seed=options.seed,
        leaks=tuple(options.leak),
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m soak", description="Run a host for long, and see what it holds."
    )
    parser.add_argument(
        "--invocations", type=number_from(1), default=200_000, help="calls (200000)"
    )
    parser.add_argument(
        "--control", type=number_from(0), help="calls of bare Celery (a quarter of those)"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of everything")
    parser.add_argument("--minutes", type=number_from(0.01), help="what calls are spread over")
    parser.add_argument(
        "--faults", type=number_from(0), help="beside two long outages (one in 5 s)"
    )
    parser.add_argument(
        "--leak", choices=list(Leak), nargs="+", default=[], help="leak on purpose: to be found"
    )
    parser.add_argument(
        "--life", type=number_from(1), help="bodies of a child before the next (a hundredth)"
    )
    parser.add_argument(
        "--memory-from",
        type=number_from(0),
        default=MEMORY_FROM,
        help="judge memory from so many calls on (20000): before, it is all warm-up",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="write everything there, and keep it"
    )
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ChaosError, EmbeddedServerError) as error:
        sys.exit(f"soak: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
