"""Settings of the skill host; Celery reads them by ``app.config_from_object("celeryconfig")``.

``CELERY_BROKER_URL``, ``CELERY_RESULT_BACKEND`` and the ``AUDIT_*`` variables go before what stands
here. See the README's table of settings.
"""

from __future__ import annotations

from typing import Any

from audit.context import InvocationContext

broker_url = "redis://127.0.0.1:6379/0"
result_backend = "redis://127.0.0.1:6379/0"
audit_memory_url = "redis://127.0.0.1:6379/1"

#: Seconds one emit may take in all, before a skill is refused or a row reported as lost.
audit_emit_timeout = 2.0

imports = ("tasks.skills",)

task_serializer = result_serializer = "json"
accept_content = ["json"]
task_protocol = 2

enable_utc = True
timezone = "UTC"
broker_connection_retry_on_startup = True

#: A skill that overruns is ended: first with an exception in its body, then with a kill.
task_soft_time_limit = 300
task_time_limit = 330

worker_send_task_events = True
task_send_sent_event = True

#: A schedule has no caller to inherit from: each entry names its own persona and tenant, or beat
#: does not start (docs/schedules.md).
beat_schedule: dict[str, dict[str, Any]] = {
    "queue-depth": {
        "task": "obs.queue-depth",
        "schedule": 60.0,
        "kwargs": {"queues": ["celery"]},
        "options": {
            "expires": 60.0,
            "headers": InvocationContext(
                "obs-scheduler@1.0.0", "7b8c1d9e-4c56-4f0a-9a53-0d6f2a1e8b47"
            ).headers(),
        },
    },
}
