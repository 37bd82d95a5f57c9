"""Audited skills, the host in its own default settings."""

from __future__ import annotations

from typing import Final

from audit import acting_as
from bench.place import Place
from bench.sides import Side, fail, noop
from tasks.host import SkillHost

TENANT: Final = "550e8400-e29b-41d4-a716-446655440000"


def make(place: Place) -> Side:
    app = SkillHost("bench")
    app.conf.update(place.celery_settings(), audit_memory_url=place.memory)
    return Side(
        app=app,
        noop=app.skill("bench.noop", version="1.0.0")(noop),
        fail=app.skill("bench.fail", version="1.0.0")(fail),
        caller=lambda: acting_as("cuo-bench@1.0.0", TENANT),
    )
