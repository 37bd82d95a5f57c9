"""The app of a worker that has a task with a request class of its own, which verifies nothing."""

from __future__ import annotations

from celery.worker.request import Request

from tests.integration.worker_app import app


class OwnRequest(Request):
    """As applications have them, to tell more of a request."""


@app.task(name="test.careless", Request=OwnRequest, shared=False)  # type: ignore[untyped-decorator]
def careless() -> None:
    return None
