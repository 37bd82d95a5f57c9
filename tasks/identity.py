"""The identity of an invocation, read from a message in the same way by every process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from audit.context import InvocationContext, Trace
from audit.invocation import new_request_id
from audit.memory.base import Hold
from audit.row import NIL_TENANT, Identity
from audit.schedule import Tick, tick_of
from tasks.caller import REQUEST_ID_HEADER
from tasks.proof import is_unproven, proven_by

#: Seconds that a tick stays taken (``once_per_tick``): a second message may wait long in a queue.
TICK_SECONDS: Final = 7 * 24 * 3600


def identify(
    task: Any, message: Mapping[str, Any], context: InvocationContext | None, worker: str
) -> Identity:
    """Who is executed for whom.

    What is executed is ``task``, whatever a header claims.

    Args:
        task: the skill.
        message: the fields of the request: headers, and what Celery adds to them.
        context: the caller; ``None`` where none is proven.
        worker: the id of the process group that runs it.
    """
    received = message.get(REQUEST_ID_HEADER)
    tick = None if is_unproven(message) else tick_of(message)
    place = context.trace if context is not None else Trace.parse(message.get("traceparent"))
    return Identity(
        request_id=received if isinstance(received, str) else new_request_id(),
        skill_id=task.name,
        version=task.version,
        caller_persona=context.caller_persona if context is not None else "",
        tenant_id=context.tenant_id if context is not None else NIL_TENANT,
        trace_id=(place or Trace.current() or Trace.fresh()).trace_id,
        task_id=task_id_of(message),
        attempt=attempt_of(message),
        redelivered=redelivered(message),
        parent_request_id=context.parent_request_id if context is not None else None,
        worker=worker,
        on_behalf_of=context.on_behalf_of if context is not None else None,
        context_key=proven_by(message),
        schedule=tick.schedule if tick is not None else None,
        due=tick.due if tick is not None else None,
    )


def hold_of(identity: Identity, tick: Tick | None) -> Hold | None:
    """How an invocation takes its tick; ``None`` where anybody may run that as well.

    What holds it is the task id, which a redelivery and a retry have alike.
    """
    if tick is None or not tick.once or not identity.task_id:
        return None
    return Hold(
        token=tick.token(identity.skill_id),
        holder=ascii(identity.task_id)[1:-1],
        seconds=TICK_SECONDS,
    )


def task_id_of(message: Mapping[str, Any]) -> str | None:
    """Celery's id as a row can keep it: a foreign publisher may have put anything there."""
    task_id = message.get("id")
    if task_id is None:
        return None
    return str(task_id).encode("ascii", "backslashreplace").decode()[:255]


def attempt_of(message: Mapping[str, Any]) -> int:
    """Celery's ``retries`` where it is a number of attempts; a row has room for small ones only."""
    retries = message.get("retries")
    return retries if type(retries) is int and 0 <= retries < 2**31 else 0


def redelivered(message: Mapping[str, Any]) -> bool:
    """Whether the broker says so. A header of that name would stay true on a later retry."""
    delivery = message.get("delivery_info")
    return isinstance(delivery, Mapping) and bool(delivery.get("redelivered"))
