"""What both halves of a soak share: the plan, their processes, and who is to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from chaos.crew import ChaosError, Member
from chaos.place import Place
from soak.publisher import BEGINS, DONE
from soak.sample import Role

CHILDREN: Final = 4
LEASE: Final = 5.0
#: Seconds that the rest of the load, or verifying, may take.
DRAIN_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a soak is made of.

    Attributes:
        invocations: calls of the audited host.
        control: calls of bare Celery, 0 for none.
        seconds: what the calls of the audited host are spread over, at least.
        faults: how many, beside the two long outages.
        memory_from: memory is judged from so many invocations on.
        life: bodies after which a child is replaced.
        every: seconds between two samples.
        seed: the same seed, the same load and faults.
        leaks: on purpose, which are to be found.
    """

    invocations: int
    control: int
    seconds: float
    faults: int
    memory_from: int
    life: int
    every: float
    seed: int
    leaks: tuple[str, ...] = ()

    @property
    def memory_judged(self) -> bool:
        return bool(self.control) and self.invocations >= self.memory_from


def options(plan: Plan) -> list[str]:
    return ["-l", "WARNING", "-c", str(CHILDREN), f"--max-tasks-per-child={plan.life}"]


def publisher(place: Place, host: str, count: int, seconds: float, seed: int) -> Member:
    arguments = ["soak.publisher", host, str(count), str(seconds), str(seed)]
    return Member(place, "publisher", arguments, BEGINS)


def done(publisher: Member) -> bool:
    return DONE in publisher.log.read_bytes()


def processes(
    host: Member, publisher: Member, keeper: Member | None = None
) -> Callable[[], Mapping[int, Role]]:
    """The processes to look at, with their roles."""

    def find() -> Mapping[int, Role]:
        found = {host.process.pid: Role.MAIN, publisher.process.pid: Role.PUBLISHER}
        if keeper is not None:
            found[keeper.process.pid] = Role.KEEPER
        return found | dict.fromkeys(host.children(), Role.CHILD)

    return find


def check(*members: Member) -> None:
    for member in members:
        if not member.running:
            raise ChaosError(f"{member.name} ended by itself, see {member.log}")
