"""audit/breaker.py: an outage costs one emit its timeout, not every one."""

from __future__ import annotations

import pytest

from audit.breaker import COOLDOWN, Breaker
from audit.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def breaker(clock: FakeClock) -> Breaker:
    return Breaker(clock=clock)


def test_a_healthy_memory_is_always_tried(breaker: Breaker) -> None:
    """Nothing failed, so nothing is held back."""
    assert [breaker.lets_through() for _ in range(5)] == [True] * 5
    assert not breaker.open


def test_after_a_failure_one_try_a_cooldown_is_let_through(
    breaker: Breaker, clock: FakeClock
) -> None:
    """None before the cooldown is over, then one, and the next a cooldown later."""
    breaker.failed()
    assert breaker.open
    clock.pass_by(COOLDOWN - 0.001)
    assert not breaker.lets_through()
    for _ in range(3):
        clock.pass_by(COOLDOWN)
        assert [breaker.lets_through() for _ in range(4)] == [True, False, False, False]
        assert breaker.open


def test_a_try_that_hangs_holds_nobody_else_up(breaker: Breaker, clock: FakeClock) -> None:
    """While it waits for its timeout, the others get their no at once."""
    breaker.failed()
    clock.pass_by(COOLDOWN)
    assert breaker.lets_through()
    clock.pass_by(COOLDOWN / 2)
    assert not breaker.lets_through()


def test_a_failure_counts_from_its_end(breaker: Breaker, clock: FakeClock) -> None:
    """A try may fail late, after its timeout: the cooldown begins then."""
    breaker.failed()
    clock.pass_by(COOLDOWN)
    assert breaker.lets_through()
    clock.pass_by(2 * COOLDOWN)
    breaker.failed()
    assert not breaker.lets_through()


def test_the_first_success_closes_it(breaker: Breaker) -> None:
    """From there on everything is tried again."""
    breaker.failed()
    breaker.succeeded()
    assert not breaker.open
    assert [breaker.lets_through() for _ in range(3)] == [True] * 3
