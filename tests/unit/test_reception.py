"""What a worker judges of the tasks it is going to run, before it takes a message."""

from __future__ import annotations

from typing import Any

import pytest

from audit.errors import SkillDefinitionError
from tasks import SkillHost
from tasks.reception import give_requests


def host(**conf: Any) -> SkillHost:
    app = SkillHost("worker", set_as_current=False)
    app.conf.update(broker_url="memory://", result_backend="cache+memory://", **conf)

    def body() -> None: ...

    app.skill("test.excluded", version="1.0.0", body_excluded=True)(body)
    app.finalize()
    return app


def test_an_excluded_body_and_extended_results_exclude_each_other() -> None:
    """Celery's backends would keep the arguments beside the reference."""
    give_requests(host(), proven=False)
    with pytest.raises(SkillDefinitionError, match=r"test\.excluded: .* result_extended"):
        give_requests(host(result_extended=True), proven=False)


def test_a_backend_that_keeps_hashes_may_be_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """django-celery-results takes the reprs, which are hashes."""
    app = host(result_extended=True)
    kept = type("DatabaseBackend", (), {"__module__": "django_celery_results.backends"})
    monkeypatch.setattr(type(app), "backend", kept())
    give_requests(app, proven=False)
