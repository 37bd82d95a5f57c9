"""One check: its line, and the run that bounds it.

What is guaranteed: each probe has so many seconds and no more, all of them run beside each other,
and whatever one raises is a line of its own. No line repeats the text of an error that is not ours,
for that may hold a password.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Final

from audit.errors import AuditError, MemoryDamagedError

#: What a host hangs on its Celery app: called without arguments, it gives the probes of Celery.
PROBES: Final = "skill_probes"
#: Seconds that one check may take.
SECONDS: Final = 5.0
_DAMAGED: Final = "put back from a backup what it names, and run `audit verify`"


class Level(StrEnum):
    """``BAD`` needs somebody now, ``WARN`` a decision; ``SKIPPED`` says that nothing was judged."""

    OK = "OK"
    WARN = "WARN"
    BAD = "BAD"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What one check found.

    Attributes:
        name: what was looked at.
        level: how bad it is.
        seen: what was seen, without any secret.
        advice: what to do; empty where there is nothing to do.
    """

    name: str
    level: Level
    seen: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A check that is still to be made.

    Attributes:
        name: of the line in which it ends, should it fail or hang.
        look: makes it; it may take long, and raise anything.
        advice: what to do where it fails or hangs.
    """

    name: str
    look: Callable[[], Check]
    advice: str = ""


def ok(name: str, seen: str) -> Check:
    return Check(name=name, level=Level.OK, seen=seen)


def warn(name: str, seen: str, advice: str) -> Check:
    return Check(name=name, level=Level.WARN, seen=seen, advice=advice)


def bad(name: str, seen: str, advice: str) -> Check:
    return Check(name=name, level=Level.BAD, seen=seen, advice=advice)


def skipped(name: str, seen: str, advice: str = "") -> Check:
    return Check(name=name, level=Level.SKIPPED, seen=seen, advice=advice)


def examine(probes: Sequence[Probe], seconds: float = SECONDS) -> list[Check]:
    """Make all checks; their lines, in the order of the probes, after ``seconds`` at the latest."""
    answers = [_begun(probe) for probe in probes]
    until = time.monotonic() + seconds
    return [
        _answer(probe, answer, until, seconds)
        for probe, answer in zip(probes, answers, strict=True)
    ]


def named(names: Iterable[str], most: int = 10) -> str:
    """Names in one line, in order; beyond ``most`` only their number."""
    found = sorted(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"{', '.join(found[:most])}{more}"


def kind_of(error: BaseException) -> str:
    """The class of a strange error, and that of what caused it: never its text."""
    cause = error.__cause__ or error.__context__
    return type(error).__name__ + (f" ({type(cause).__name__})" if cause is not None else "")


def _begun(probe: Probe) -> SimpleQueue[Check]:
    answer: SimpleQueue[Check] = SimpleQueue()
    # A daemon, because a probe that hangs must not keep the program from ending.
    threading.Thread(
        target=lambda: answer.put(_made(probe)), name=f"doctor-{probe.name}", daemon=True
    ).start()
    return answer


def _made(probe: Probe) -> Check:
    try:
        return probe.look()
    except MemoryDamagedError as error:
        return bad(probe.name, str(error), _DAMAGED)
    except AuditError as error:
        return bad(probe.name, str(error), probe.advice)
    except BaseException as error:
        # Also what ends a program, as a module of skills may raise at its import.
        return bad(probe.name, f"failed: {kind_of(error)}", probe.advice)


def _answer(probe: Probe, answer: SimpleQueue[Check], until: float, seconds: float) -> Check:
    try:
        return answer.get(timeout=max(0.0, until - time.monotonic()))
    except Empty:
        return bad(probe.name, f"no answer within {seconds:g} s", probe.advice)
