"""The caller, a process of its own: it publishes what it is told to on its standard input.

A line is the JSON of names of ways; the answer, a line too, tells the task ids by way, and how all
paths so far are called. It logs at DEBUG, every logger, and exports its spans.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any
from uuid import uuid4

from celery import Celery

from audit import InvocationContext, acting_as
from tasks import SkillHost, telemetry
from tests.integration.canary.app import app, keep_records, skills
from tests.integration.canary.secrets import Mint
from tests.integration.canary.ways import WAYS

PERSONA, TENANT = "cuo-cpo@0.4.1", "550e8400-e29b-41d4-a716-446655440000"


class Caller:
    """What a way needs to publish."""

    def __init__(self) -> None:
        self.app, self.skills = app, skills
        self.plain = Celery("plain", broker=app.conf.broker_url, set_as_current=False)
        self.ignorant = SkillHost("ignorant", set_as_current=False)
        for other in (self.plain, self.ignorant):
            other.conf.update(
                broker_url=os.environ["CELERY_BROKER_URL"], task_default_queue="skills"
            )
        # The plain publisher's own events are its own affair: nothing of ours runs in it.
        self.ignorant.conf.task_send_sent_event = True
        self.headers = InvocationContext(PERSONA, TENANT).headers()
        self.paths: list[str] = []
        self._mint = Mint(os.environ["CANARY_SEED"])
        self._way = ""

    def publish(self, way: str) -> str | None:
        self._way = way
        with acting_as(PERSONA, tenant_id=TENANT):
            return getattr(WAYS[way].publish(self), "id", None)

    def pay(self, part: str = "") -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a new path, which belongs to the way that is being published."""
        self.paths.append(f"{self._way}: {part}".removesuffix(": "))
        return self._mint.payload(len(self.paths) - 1)

    def new_id(self) -> str:
        return str(uuid4())


def main() -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    keep_records()
    telemetry.set_up()
    caller = Caller()
    for line in sys.stdin:
        ids = {way: caller.publish(way) for way in json.loads(line)}
        print(json.dumps({"ids": ids, "paths": caller.paths}), flush=True)
    telemetry.shut_down()


if __name__ == "__main__":
    main()
