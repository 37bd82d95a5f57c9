"""An existing Celery application that adopts the host, in the order such a module has it.

A worker runs it by ``-A tests.integration.adopted_app``; tests make more of the same kind.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from celery import Celery

from tasks import SkillHost
from tasks.host import skill

#: What the application had configured before anybody thought of skills.
CONF: dict[str, Any] = {
    "accept_content": ["json"],
    "task_default_queue": "legacy",
    "task_track_started": True,
    "task_acks_late": True,
    "result_expires": 1234,
    "task_default_rate_limit": None,
    "worker_prefetch_multiplier": 1,
}


def legacy() -> tuple[Celery, SimpleNamespace]:
    """The application as it was, with its plain tasks."""
    app = Celery("legacy", set_as_current=False)
    app.conf.update(
        CONF,
        broker_url=os.environ.get("CELERY_BROKER_URL"),
        result_backend=os.environ.get("CELERY_RESULT_BACKEND"),
    )

    @app.task(name="legacy.add", shared=False, max_retries=7, default_retry_delay=11)
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="legacy.fail", shared=False)
    def fail(text: str) -> None:
        raise KeyError(text)

    @app.task(name="legacy.request", shared=False, bind=True)
    def request(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {
            "argsrepr": self.request.argsrepr,
            "kwargsrepr": self.request.kwargsrepr,
            "class": type(self).__mro__[1].__name__,
            "headers": self.request.headers,
        }

    @app.task(name="legacy.publishes", shared=False)
    def publishes(x: int) -> str:
        return str(app.signature("adopted.double", (x,)).apply_async().id)

    return app, SimpleNamespace(add=add, fail=fail, request=request, publishes=publishes)


def declare_skills(app: Celery) -> SimpleNamespace:
    """The skills it has since it adopted the host."""

    @skill("adopted.double", version="2.0.0", app=app)
    def double(x: int) -> int:
        return 2 * x

    @skill("adopted.total", version="2.0.0", app=app)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return SimpleNamespace(double=double, total=total)


app, plain = legacy()
SkillHost.adopt(app)
skills = declare_skills(app)
