"""tasks/gateway_threads.py: bounded, and what was given up never runs."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from tasks.gateway_threads import BusyError, Threads, UnansweredError, Waits

WHERE: ContextVar[str] = ContextVar("where", default="nowhere")


def test_a_call_runs_in_the_callers_context_and_beside_the_loop() -> None:
    """In a thread of the pool, with the context variables of the request."""

    async def scene() -> tuple[str, bool]:
        threads = Threads(1, 0, 10)
        WHERE.set("here")
        here = threading.get_ident()
        found = await threads.run(lambda: (WHERE.get(), threading.get_ident() != here))
        threads.close()
        return found

    assert asyncio.run(scene()) == ("here", True)


def test_what_does_not_fit_is_refused_at_once() -> None:
    """One runs, one waits, the third is refused; when they are done there is room again."""

    async def scene() -> None:
        threads, release = Threads(1, 1, 10), threading.Event()
        first = asyncio.create_task(threads.run(release.wait, 10))
        second = asyncio.create_task(threads.run(release.wait, 10))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await threads.run(release.wait, 10)
        release.set()
        assert await first
        assert await second
        assert await threads.run(lambda: 3) == 3
        threads.close()

    asyncio.run(scene())


def test_a_call_that_was_given_up_in_line_never_runs() -> None:
    """The one that runs is unanswered, and the other one is not run afterwards."""

    async def scene() -> None:
        threads, release, ran = Threads(1, 1, 0.05), threading.Event(), []
        results = await asyncio.gather(
            threads.run(release.wait, 10),
            threads.run(ran.append, 1),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [UnansweredError, BusyError]
        release.set()
        threads.close()
        assert ran == []

    asyncio.run(scene())


def test_what_waits_in_line_at_the_end_is_told() -> None:
    """A pool that is closed gives up those in line; a request that is given up itself stays so."""

    async def scene() -> None:
        threads, release = Threads(1, 2, 10), threading.Event()
        running = asyncio.create_task(threads.run(release.wait, 10))
        in_line, gone = (asyncio.create_task(threads.run(print)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        threads.close()
        with pytest.raises(BusyError):
            await in_line
        with pytest.raises(asyncio.CancelledError):
            await gone
        release.set()
        assert await running

    asyncio.run(scene())


def test_an_error_is_the_callers() -> None:
    """A TimeoutError of the call itself too, and its place is free again."""

    async def scene() -> None:
        threads = Threads(1, 0, 10)
        for kind in (KeyError, TimeoutError):

            def fail(kind: type[Exception] = kind) -> None:
                raise kind

            with pytest.raises(kind):
                await threads.run(fail)
        threads.close()
        with pytest.raises(BusyError):
            await threads.run(lambda: 1)

    asyncio.run(scene())


def test_waits_are_counted() -> None:
    """One more than there is room for is refused, and a place that was left is free."""
    waits = Waits(1)
    with waits, pytest.raises(BusyError), waits:
        pass
    with waits:
        pass
