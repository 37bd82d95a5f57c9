"""One soak from the first process to the verdict: the control first, then the audited host."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from soak import judge
from soak.control import run_bare
from soak.host import Audited, run_audited
from soak.judge import Check
from soak.sample import Role, Sample
from soak.stage import CHILDREN, Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Everything that is known after a soak.

    Attributes:
        plan: what was to be.
        audited: what the audited host's part came to.
        bare: samples of bare Celery.
        checks: what was to be flat.
        seconds: what it took.
    """

    plan: Plan
    audited: Audited
    bare: Sequence[Sample]
    checks: Sequence[Check]
    seconds: float

    @property
    def clean(self) -> bool:
        told = self.audited
        return (
            all(check.flat for check in self.checks)
            and not (told.tally.findings or told.left_open or told.surprises or told.verified)
            and told.tally.published == self.plan.invocations
        )

    @property
    def recycled(self) -> int:
        """How many children there were beyond the first ones, as far as samples met them."""
        held = [one for sample in self.audited.samples for one in sample.held]
        return max(0, len({one.pid for one in held if one.role is Role.CHILD}) - CHILDREN)


def run(plan: Plan, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Run and judge; every process has ended when this returns."""
    began = time.monotonic()
    bare = run_bare(plan, _folder(directory, "bare"), say) if plan.control else []
    audited = run_audited(plan, _folder(directory, "audited"), say)
    return Outcome(
        plan=plan,
        audited=audited,
        bare=bare,
        checks=list(_checks(plan, audited, bare)),
        seconds=time.monotonic() - began,
    )


def _checks(plan: Plan, audited: Audited, bare: Sequence[Sample]) -> Iterator[Check]:
    if plan.memory_judged:
        yield from judge.memory(audited.samples, bare, plan.life)
    yield from judge.levels(audited.samples)
    yield Check(what="files in the spool at the end", measured=audited.spool, limit=0)


def _folder(directory: Path, name: str) -> Path:
    folder = directory / name
    folder.mkdir(mode=0o700)
    return folder


def rate(samples: Sequence[Sample]) -> float:
    """Bodies a second over all samples."""
    return samples[-1].done / samples[-1].seconds if samples else math.nan
