"""A process that publishes skills which it does not know: it has their names and nothing else."""

from __future__ import annotations

import sys

from celery import chain
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from audit import acting_as
from audit.context import Trace
from tasks import SkillHost


def main(how: str, persona: str, tenant_id: str, traceparent: str) -> None:
    app = SkillHost("ignorant")
    app.conf.task_default_queue = "skills"
    assert not any(name.startswith("test.") for name in app.tasks)
    place = Trace.parse(traceparent)
    assert place is not None
    if how == "traced":
        trace.set_tracer_provider(TracerProvider())
    with acting_as(persona, tenant_id), trace.use_span(place.span()):
        if how in ("send_task", "traced"):
            result = app.send_task("test.echo", (1,))
        else:
            echo = app.signature("test.echo")
            result = chain(echo.clone((1,)), echo.clone(), echo.clone()).apply_async()
    assert CeleryInstrumentor().is_instrumented_by_opentelemetry is (how == "traced")
    print(result.id)


if __name__ == "__main__":
    main(*sys.argv[1:])
