"""The control: the same bodies as tasks of bare Celery, with the same settings.

Its processes have the audit's modules loaded, as those of the host have, and use none of them.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from chaos import skills as bodies
from soak import upkeep
from soak.load import SETTINGS


class Bare(Celery):
    """Celery that takes the declaration of a skill for one of a task."""

    def skill(self, name: str, *, version: str, **options: Any) -> Any:
        return self.task(name=name, **options)


app = Bare("soak")
app.conf.update({**bodies.SETTINGS, **SETTINGS})
skills = bodies.declare(app)
upkeep.begin()
