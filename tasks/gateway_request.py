"""What a request to the gateway says: who calls, as whom, for whom, and for how long it waits.

Each part is judged before the next one is read, and the body last: who has no token gets nothing
read. A header that decides something may be given once, for two readers could take two different
ones of it.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import Final

from starlette.requests import ClientDisconnect, Request

from audit.context import InvocationContext, Trace
from audit.errors import InvalidInvocationContext
from tasks.gateway_problem import Fault, Problem
from tasks.gateway_tokens import TOKEN, Token, Tokens

PERSONA: Final = "X-Audit-Persona"
TENANT: Final = "X-Audit-Tenant"
HUMAN: Final = "X-On-Behalf-Of"

#: Seconds that a client may take to send its body.
BODY_SECONDS: Final = 10

#: A number as JSON and the OpenAPI document have it.
_SECONDS: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")
_BEARER: Final = re.compile(r"bearer +(?P<token>\S+)", re.IGNORECASE)
_JSON: Final = re.compile(r"application/json *(; *charset *= *\"?utf-8\"?)? *", re.IGNORECASE)


def caller(request: Request, tokens: Tokens) -> Token:
    """Whose token the request has.

    Raises:
        Problem: it has none that is known (401).
    """
    given = request.headers.getlist("authorization")
    match = _BEARER.fullmatch(given[0].strip()) if len(given) == 1 else None
    if match is not None and TOKEN.fullmatch(match["token"]):
        token = tokens.find(match["token"])
        if token is not None:
            return token
    raise Problem(Fault.UNAUTHENTICATED, "a known token is needed: Authorization: Bearer ...")


def context_of(request: Request, token: Token) -> InvocationContext:
    """As whom and for whom is called, in the trace that is current.

    Raises:
        Problem: a part is missing, malformed or given twice (400), or the token may not name it
            (403).
    """
    persona, tenant = _one(request, PERSONA), _one(request, TENANT)
    if persona is None or tenant is None:
        raise Problem(Fault.INVALID_CONTEXT, f"{PERSONA} and {TENANT} say who calls and for whom")
    place = Trace.current() or Trace.fresh()
    try:
        context = InvocationContext(persona, tenant, trace=place, on_behalf_of=_one(request, HUMAN))
    except InvalidInvocationContext as error:
        raise Problem(Fault.INVALID_CONTEXT, str(error)) from None
    refusal = token.refusal(context)
    if refusal is not None:
        raise Problem(Fault.NOT_ALLOWED, f"the token may not name {refusal}")
    return context


def _one(request: Request, name: str) -> str | None:
    given = request.headers.getlist(name)
    if len(given) > 1:
        raise Problem(Fault.INVALID_CONTEXT, f"{name} was given more than once")
    return given[0] if given else None


def seconds_to_wait(request: Request, most: float) -> float:
    """The query's ``wait``, 0 without one.

    Raises:
        Problem: it is out of bounds, or the query says something else (400).
    """
    query = request.query_params.multi_items()
    if not query:
        return 0.0
    if [name for name, _ in query] != ["wait"]:
        raise Problem(
            Fault.INVALID_QUERY, "the query takes wait=SECONDS alone; arguments go into the body"
        )
    # Not whatever float() takes: digits of other scripts, blanks, underscores.
    seconds = float(query[0][1]) if _SECONDS.fullmatch(query[0][1]) else math.nan
    if not 0 <= seconds <= most:
        raise Problem(Fault.INVALID_QUERY, f"wait takes seconds from 0 to {most:g}")
    return seconds


async def body_of(request: Request, most: int) -> bytes:
    """The body, of at most so many bytes.

    Raises:
        Problem: it is no JSON (415), too large (413) or too slow (408).
    """
    kinds = request.headers.getlist("content-type")
    if len(kinds) != 1 or not _JSON.fullmatch(kinds[0]) or "content-encoding" in request.headers:
        raise Problem(Fault.UNSUPPORTED_MEDIA_TYPE, "the body takes application/json, unencoded")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(request, most)
    except TimeoutError:
        raise Problem(Fault.BODY_TOO_SLOW, f"the body took over {BODY_SECONDS} s") from None
    except ClientDisconnect:
        raise Problem(Fault.MALFORMED_BODY, "the body ended too early") from None


async def _read(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def _too_large(most: int) -> Problem:
    return Problem(Fault.BODY_TOO_LARGE, f"the body may have {most} bytes")
