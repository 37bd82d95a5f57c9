"""The audited skill host: ``app`` is the host, ``skill`` declares a skill in it.

::

    from tasks import app, skill

    @skill("obs.triage-alert", version="1.0.0")
    def triage_alert(alert): ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tasks import host
from tasks.host import SkillHost
from tasks.task import SkillTask

app = SkillHost("tasks")
app.config_from_object("celeryconfig")


@wraps(host.skill)
def skill(skill_id: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    return host.skill(skill_id, **{"app": app, **options})


__all__ = ["SkillHost", "SkillTask", "app", "skill"]
