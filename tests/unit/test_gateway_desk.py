"""tasks/gateway_desk.py: whatever goes wrong, what may have been published is named."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import pytest

from audit.context import InvocationContext
from audit.keys import KeyRing
from tasks.gateway_desk import Desk
from tasks.gateway_links import StatusLinks
from tasks.gateway_problem import Fault, Problem
from tasks.gateway_threads import Threads, Waits
from tests.integration.gateway import KEYS
from tests.support import TENANT

SECRET = "Zanzibar-4711"


class Failing:
    """Calls that fail in a way that nobody foresaw, after the broker may have had the message."""

    def keeps_result(self, skill: Any) -> bool:
        return True

    def publish(self, *call: Any) -> None:
        raise ArithmeticError(SECRET)


def test_an_error_that_nobody_foresaw_has_its_link(caplog: pytest.LogCaptureFixture) -> None:
    """500 with task id and status link; the log has type and lines, and not the text."""

    async def scene() -> None:
        threads, links = Threads(1, 1, 10), StatusLinks(KeyRing.parse(KEYS))
        calls: Any = Failing()
        desk = Desk(calls, links, threads, threads, Waits(1))
        context = InvocationContext("a@1", TENANT, trace_id=uuid4().hex)
        skill: Any = None
        with pytest.raises(Problem) as caught:
            await desk.publish(skill, b"{}", context, "")
        threads.close()
        problem = caught.value
        assert problem.fault is Fault.INTERNAL
        assert problem.headers["Location"] == problem.members["status_link"]

    with caplog.at_level(logging.ERROR, "audit"):
        asyncio.run(scene())
    assert "ArithmeticError" in caplog.text
    assert "in publish" in caplog.text
    assert SECRET not in caplog.text
