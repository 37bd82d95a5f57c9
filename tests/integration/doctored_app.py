"""A host with every fault that an app can have by itself; with ``HEALTHY`` set it has none."""

from __future__ import annotations

import os

from audit.context import InvocationContext
from tasks import SkillHost
from tests.support import TENANT

HEALTHY = "HEALTHY" in os.environ

app = SkillHost("doctored", set_as_current=True)
app.conf.update(
    accept_content=["json"],
    task_default_queue="doctored",
    worker_pool="prefork" if HEALTHY else "solo",
    task_time_limit=30 if HEALTHY else None,
)


@app.skill("doctored.endless", version="1.0.0")
def endless() -> None: ...


if not HEALTHY:

    @app.task(name="doctored.plain", shared=False)
    def plain() -> None: ...


options = {"headers": InvocationContext("beat@1.0.0", TENANT).headers()} if HEALTHY else {}
app.conf.beat_schedule = {
    "tick": {"task": "doctored.endless", "schedule": 60.0, "options": options}
}
