"""The app that a test's worker runs: everything about it comes from the environment."""

from __future__ import annotations

import json
import os

from tasks import SkillHost
from tests.integration.skills import declare

app = SkillHost("worker", set_as_current=True)
app.conf.update(
    {
        "accept_content": ["json"],
        "task_default_queue": "skills",
        "broker_connection_retry_on_startup": True,
        **json.loads(os.environ.get("WORKER_CONF", "{}")),
    }
)
skills = declare(app)
