"""Skills over HTTP: the ASGI app that :func:`gateway` makes of a host.

::

    from my_skills import app as celery_app
    from tasks.gateway import gateway

    app = gateway(celery_app)       # uvicorn my_gateway:app

What is guaranteed:

* nobody gets in without a token, and none goes beyond the tenants, personas and humans it may name;
* only skills can be called, and what is published is published as from Python: the same context,
  signature, trace, refusals and rows;
* whatever was or may have been published is answered with its status link, so nothing is lost;
* no answer but a result, and no log record or span, holds an argument or a result;
* the event loop never waits for broker, result backend or memory, and what waits is bounded.

It needs the extra ``gateway``. See ``docs/gateway.md``, decision record 19.
"""

from __future__ import annotations

try:
    import starlette  # noqa: F401
except ModuleNotFoundError as missing:
    raise ImportError("the gateway needs its extra: pip install 'skill-host[gateway]'") from missing

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from celery import Celery
from kombu.utils.json import dumps
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from audit.settings import AuditSettings
from tasks import app as host_app
from tasks import telemetry
from tasks.gateway_calls import Calls
from tasks.gateway_desk import Desk, Published
from tasks.gateway_links import StatusLinks
from tasks.gateway_middleware import GatewayMiddleware, keep_queries_out_of_the_log
from tasks.gateway_openapi import document
from tasks.gateway_problem import Fault, Problem, answer_http, answer_problem
from tasks.gateway_request import body_of, caller, context_of, seconds_to_wait
from tasks.gateway_threads import Threads, Waits
from tasks.gateway_tokens import Tokens
from tasks.task import SkillTask

logger: Final = logging.getLogger("audit")

#: Seconds that one call of broker, result backend or memory may take.
CALL_SECONDS: Final = 10.0


def gateway(
    celery_app: Celery,
    *,
    threads: int = 16,
    line: int = 240,
    waits: int = 256,
    seconds: float = CALL_SECONDS,
) -> Starlette:
    """The ASGI app that serves the skills of ``celery_app``.

    Args:
        celery_app: a skill host; its skills are those that its modules declare.
        threads: how many calls are published at a time, and how many are asked for beside them.
        line: how many of each may wait for a thread; beyond that requests are answered 503.
        waits: how many requests may wait for a result at a time; likewise.
        seconds: that one call of broker, result backend or memory may take.

    Raises:
        SettingsError: ``audit_gateway_tokens`` or ``audit_gateway_keys`` are missing or malformed,
            or the app cannot serve a gateway.
    """
    settings = AuditSettings.read(celery_app.conf, os.environ)
    publishing, asking = Threads(threads, line, seconds), Threads(threads, line, seconds)
    links, calls = StatusLinks(settings.gateway_keys), Calls(celery_app, seconds)
    desk = Desk(calls, links, publishing, asking, Waits(waits))
    served = _Gateway(desk, Tokens.read(settings.gateway_tokens), settings)
    keep_queries_out_of_the_log()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        telemetry.set_up(role="gateway")
        yield
        publishing.close()
        asking.close()
        telemetry.shut_down()

    served_app = Starlette(
        routes=[
            Route("/v1/skills/{skill_id}", served.call, methods=["POST"]),
            Route("/v1/invocations/{link}", served.status, methods=["GET"]),
            Route("/openapi.json", served.openapi, methods=["GET"]),
            Route("/healthz", served.healthz, methods=["GET"]),
        ],
        middleware=[Middleware(GatewayMiddleware)],
        exception_handlers={Problem: answer_problem, HTTPException: answer_http},
        lifespan=lifespan,
    )
    served_app.router.redirect_slashes = False  # to an address made of whatever Host says
    return served_app


def application() -> Starlette:
    """The gateway of the host's own app: ``uvicorn --factory tasks.gateway:application``."""
    return gateway(host_app)


class _Gateway:
    """The addresses."""

    def __init__(self, desk: Desk, tokens: Tokens, settings: AuditSettings) -> None:
        self._desk = desk
        self._tokens = tokens
        self._settings = settings
        self._skills: Mapping[str, SkillTask] = desk.skills()
        self._document = dumps(document(self._skills))

    async def call(self, request: Request) -> Response:
        """Publish a skill; with ``wait`` answer with its result."""
        token = caller(request, self._tokens)
        skill = self._skills.get(request.path_params["skill_id"])
        if skill is None:
            raise Problem(Fault.UNKNOWN_SKILL, "there is no such skill")
        context = context_of(request, token)
        seconds = seconds_to_wait(request, self._settings.gateway_max_wait)
        body = await body_of(request, self._settings.gateway_max_body)
        base = request.scope.get("root_path", "")
        if not seconds:
            return _accepted(await self._desk.publish(skill, body, context, base))
        gone = request.is_disconnected
        published, result = await self._desk.perform(skill, body, context, base, seconds, gone)
        return _json({**result, **published.members()})

    async def status(self, request: Request) -> Response:
        """How far an invocation is, for tokens of its tenant."""
        token = caller(request, self._tokens)
        return _json(await self._desk.status(request.path_params["link"], token))

    async def openapi(self, request: Request) -> Response:
        """What can be called, for those who may call something."""
        caller(request, self._tokens)
        return Response(self._document, media_type="application/json")

    async def healthz(self, request: Request) -> Response:
        """That the gateway is up; of memory and broker its calls tell."""
        return _json({"status": "ok"})


def _accepted(published: Published) -> Response:
    return _json({"state": "pending", **published.members()}, 202, published.headers())


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """As Celery writes it, for a result may hold what JSON has no word for."""
    return Response(dumps(content), status, headers, media_type="application/json")
