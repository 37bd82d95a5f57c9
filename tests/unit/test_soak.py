"""The judge of the soak on made-up series: a leak is found, noise and outages are not one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from chaos.journal import Follower
from soak import judge
from soak.judge import GROWTH, GROWTH_IN_A_LIFE, SPARE
from soak.sample import Held, Role, Sample

LIFE = 2_000
MIB = 2**20


def made_up(
    *,
    main: int = 0,
    child: int = 0,
    inherited: int = 0,
    keeper: int = 0,
    connections: int = 0,
    handles: int = 0,
    noise: int = MIB,
    seed: int = 1,
) -> list[Sample]:
    """200,000 invocations in 250 samples, two children at a time.

    Args:
        main: bytes that the main process keeps of each invocation, and ``keeper`` the keeper.
        child: bytes that a child keeps of each of its bodies.
        inherited: bytes that each child begins with more for each invocation before it.
        connections: left open after each of ten outages, and ``handles`` by the main process.
        noise: how far a size may lie from what it is without noise, either way.
        seed: of the noise.
    """
    random = Random(seed)
    samples = []
    for number in range(250):
        done = number * 800
        outages = number // 25
        away = number % 25 == 24
        swell = 8 * MIB if away else 0  # an outage, and what it takes as long as it lasts
        warm = min(number, 40) * MIB // 4
        settled = 40 * MIB + warm + swell

        def held(role: Role, pid: int, age: int, uss: int, more: int = 0) -> Held:
            return Held(
                role=role,
                pid=pid,
                age=age,
                uss=uss + random.randint(-noise, noise),
                rss=0,
                handles=40 + more + random.randint(0, 2),
                threads=3,
            )

        children = [
            held(
                Role.CHILD,
                pid=1_000 + 2 * (done // LIFE // 2) + which,
                age=(done // 2) % LIFE,
                uss=40 * MIB
                + child * ((done // 2) % LIFE)
                + inherited * (done - done % (2 * LIFE)),
            )
            for which in (0, 1)
        ]
        samples.append(
            Sample(
                seconds=2.0 * number,
                done=done,
                held=(
                    held(Role.MAIN, 1, 0, settled + main * done, handles * outages),
                    held(Role.KEEPER, 2, 0, settled + keeper * done),
                    held(Role.PUBLISHER, 3, 0, settled),
                    *children,
                ),
                connections=None if away else 30 + connections * outages + random.randint(0, 3),
                rows=2 * done,
                spool=0,
            )
        )
    return samples


def not_flat(audited: Sequence[Sample], bare: Sequence[Sample] | None = None) -> set[str]:
    """What is found, bare Celery being flat if not given."""
    checks = [*judge.memory(audited, made_up(seed=2) if bare is None else bare, LIFE)]
    return {check.what for check in [*checks, *judge.levels(audited)] if not check.flat}


@pytest.mark.parametrize("seed", range(5))
def test_noise_warm_up_and_outages_are_flat(seed: int) -> None:
    """A MiB of noise either way, a warm-up and what outages take for a while are no leak."""
    assert not_flat(made_up(seed=seed)) == set()


def test_a_leak_is_found_in_the_process_that_has_it() -> None:
    """What keeps something of each invocation is named: main process, keeper, child, its heirs."""
    assert not_flat(made_up(main=64)) == {"worker main"}
    assert not_flat(made_up(keeper=64)) == {"keeper"}
    assert not_flat(made_up(child=2048)) == {"worker child, in its life"}
    assert not_flat(made_up(inherited=64)) == {"worker children, over lives"}


def test_what_bare_celery_grows_by_is_allowed_and_no_more() -> None:
    """The control is taken off; that bare Celery shrinks is not held against the audit."""
    assert not_flat(made_up(main=64), made_up(main=60, seed=2)) == set()
    assert not_flat(made_up(main=128), made_up(main=60, seed=2)) == {"worker main"}
    assert not_flat(made_up(), made_up(main=-100, seed=2)) == set()


def test_connections_and_handles_left_after_outages_are_found() -> None:
    """One connection, or handle, that each of ten outages leaves behind is enough."""
    assert not_flat(made_up(connections=1)) == {"connections"}
    assert not_flat(made_up(handles=1)) == {"handles, worker main"}


def test_what_could_not_be_told_is_not_flat() -> None:
    """Without samples nothing is flat: no figure is no pass."""
    assert len(not_flat([])) == 5 + 1 + 2 * len(Role)
    assert math.isnan(judge.growth(made_up()[:3], Role.MAIN))


def test_the_limits_are_what_is_written_down() -> None:
    """33 bytes an invocation, 131 in a child's life, four connections."""
    assert (GROWTH, GROWTH_IN_A_LIFE, SPARE) == (32 * 1024, 128 * 1024, 4)


def test_a_journal_is_followed_line_by_line(tmp_path: Path) -> None:
    """A line that is not whole yet comes with the next call, and none comes twice."""
    path = tmp_path / "journal"
    effect = {"request_id": "r", "task_id": "t", "skill": "s", "pid": 1, "main": 2, "at": 3.0}
    follower = Follower(path)
    assert follower.new() == []
    line = json.dumps(effect)
    path.write_text(f"{line}\n{line[:10]}")
    assert len(follower.new()) == 1
    assert follower.new() == []
    path.write_text(f"{line}\n{line}\n")
    assert len(follower.new()) == 1
    assert follower.new() == []
