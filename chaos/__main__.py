"""The command: ``python -m chaos [--invocations N] [--faults N] [--seed S] ...``."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from audit.errors import EmbeddedServerError
from chaos.crew import ChaosError
from chaos.report import table, write_findings
from chaos.run import WORKERS, Plan, run

#: Where ``--minutes`` does not say how long: so long a fault, and so many invocations a second.
SECONDS_PER_FAULT: Final = 1.2
PER_SECOND: Final = 60.0

Number = TypeVar("Number", int, float)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    repeat = _command(options)
    _say(f"to repeat: {repeat}")
    directory = options.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ChaosError(f"{directory} is not empty: name another folder")
    outcome = run(_plan(options), directory, _say)
    _say(table(outcome))
    findings = directory / "findings.txt"
    write_findings(findings, outcome)
    _say(f"to repeat: {repeat}")
    if not outcome.clean:
        _say(f"NOT CLEAN: see {findings} and the logs beside it")
        return 1
    _say("clean")
    if options.keep is None:
        shutil.rmtree(directory)
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    seconds = max(options.faults * SECONDS_PER_FAULT, options.invocations / PER_SECOND)
    if options.minutes is not None:
        seconds = options.minutes * 60
    return Plan(
        invocations=options.invocations,
        faults=options.faults,
        seed=options.seed,
        seconds=seconds,
        lease=options.lease,
        workers=options.workers,
    )


def _command(options: argparse.Namespace) -> str:
    """What repeats this run."""
    names = ["invocations", "faults", "seed", "lease", "workers"]
    if options.minutes is not None:
        names.append("minutes")
    return "python -m chaos " + " ".join(f"--{name} {getattr(options, name)}" for name in names)


def number_from(least: Number) -> Callable[[str], Number]:
    """Reads a number of the type of ``least`` that is no smaller."""

    def number(text: str) -> Number:
        value = type(least)(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"takes a number from {least} up")
        return value

    return number


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description="Disturb a real host, and judge what is on record."
    )
    parser.add_argument(
        "--invocations", type=number_from(1), default=20_000, help="skills to publish (20000)"
    )
    parser.add_argument("--faults", type=number_from(0), default=300, help="faults to inject (300)")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10**6), help="of load and schedule"
    )
    parser.add_argument("--minutes", type=number_from(0.01), help="how long the disturbance lasts")
    parser.add_argument(
        "--lease", type=number_from(0.5), default=3.0, help="seconds a lease lasts (3)"
    )
    parser.add_argument(
        "--workers", type=number_from(1), default=WORKERS, help=f"how many ({WORKERS})"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="write everything there, and keep it"
    )
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ChaosError, EmbeddedServerError) as error:
        sys.exit(f"chaos: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
