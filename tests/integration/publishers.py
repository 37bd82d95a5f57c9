"""Test skills that publish on in ways of their own, or try to leave their caller behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

from celery import Celery, chain, group
from celery.exceptions import Ignore, SoftTimeLimitExceeded

from audit import MissingInvocationContext, acting_as, current_context
from tasks.host import skill

#: As whom a body acts that acts as somebody else.
OTHER_PERSONA = "other@1"
OTHER_TENANT = "00000000-0000-4000-8000-00000000000f"

_abandoned: list[Any] = []


def _who() -> str:
    context = current_context()
    return f"{context.caller_persona} {context.tenant_id} {context.trace_id}"


def _acting_block() -> Iterator[None]:
    with acting_as(OTHER_PERSONA, OTHER_TENANT):
        yield


def _abandon_a_block() -> None:
    """Enter a block and never leave it."""
    block = _acting_block()
    next(block)
    _abandoned.append(block)


def declare_publishers(app: Celery, echo: Any, add: Any) -> SimpleNamespace:
    """Declare them in ``app``; they come back by name."""

    @skill("test.retry-changed", version="1.0.0", bind=True, app=app)
    def retry_changed(self: Any, left: int) -> int:
        if left:
            raise self.retry(args=(left - 1,), countdown=0)
        return left

    @skill("test.replace-with-chain", version="1.0.0", bind=True, app=app)
    def replace_with_chain(self: Any, x: int) -> Any:
        raise self.replace(chain(add.s(x, 1), echo.s()))

    @skill("test.replace-with-group", version="1.0.0", bind=True, app=app)
    def replace_with_group(self: Any, x: int) -> Any:
        raise self.replace(group(echo.s(x), echo.s(x)))

    @skill("test.nested-in-thread", version="1.0.0", app=app)
    def nested_in_thread(x: int) -> str:
        return in_a_thread(copy_context().run, x)

    @skill("test.nested-in-bare-thread", version="1.0.0", app=app)
    def nested_in_bare_thread(x: int) -> str:
        return in_a_thread(lambda publish: publish(), x)

    def in_a_thread(run: Any, x: int) -> str:
        """The id of a call that another thread published, or the name of what stopped it."""
        outcome: list[str] = []

        def publish() -> None:
            try:
                outcome.append(str(echo.delay(x).id))
            except MissingInvocationContext as error:
                outcome.append(type(error).__name__)

        thread = threading.Thread(target=run, args=(publish,))
        thread.start()
        thread.join()
        return outcome[0]

    @skill("test.mixed", version="1.0.0", bind=True, max_retries=1, app=app)
    def mixed(self: Any, how: str, number: int) -> str:
        """One of the ways in which a body ends, and what it saw of its caller before."""
        seen = _who()
        if how == "fails":
            raise ValueError(how)
        if how == "ignores":
            raise Ignore
        if how == "retries" and self.request.retries == 0:
            raise self.retry(countdown=0)
        if how == "publishes":
            echo.delay(number)
        if how == "acts and raises":
            with acting_as(OTHER_PERSONA, OTHER_TENANT):
                echo.delay(number)
                raise ValueError(how)
        if how == "abandons a block":
            _abandoned.clear()  # what an earlier invocation left is collected here and now
            echo.delay(number)
            _abandon_a_block()
            raise ValueError(how)
        if how == "overruns":
            with suppress(SoftTimeLimitExceeded):
                time.sleep(30)
        return seen

    @skill("test.mixed-async", version="1.0.0", app=app)
    async def mixed_async(how: str, number: int) -> str:
        seen = _who()
        await asyncio.sleep(0)
        if how == "async fails":
            raise ValueError(how)
        if how == "async acts":
            with acting_as(OTHER_PERSONA, OTHER_TENANT):
                await asyncio.sleep(0)
                echo.delay(number)
        assert seen == _who()
        return seen

    @skill("test.republish", version="1.0.0", bind=True, max_retries=None, app=app)
    def republish(self: Any, times: int) -> None:
        """Retries itself; the last message goes where nobody takes it."""
        attempt = self.request.retries + 1
        raise self.retry(countdown=0, queue="parked" if attempt == times else "skills")

    @skill("test.descend", version="1.0.0", app=app)
    def descend(depth: int, left: int) -> None:
        """Calls itself by message; the last message goes where nobody takes it."""
        queue = "parked" if left == 1 else "skills"
        descend.apply_async((depth, left - 1), queue=queue)

    return SimpleNamespace(
        retry_changed=retry_changed,
        replace_with_chain=replace_with_chain,
        replace_with_group=replace_with_group,
        nested_in_thread=nested_in_thread,
        nested_in_bare_thread=nested_in_bare_thread,
        mixed=mixed,
        mixed_async=mixed_async,
        republish=republish,
        descend=descend,
    )
