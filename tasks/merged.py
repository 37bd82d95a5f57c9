"""Merged mode: a task's result and its completed row, stored in one step.

An opt-in result backend, by its URL: ``merged+redis://...`` (``merged+rediss://``,
``merged+socket://``, ``merged+sentinel://``) in the very database of the audit memory. Neither is
ever seen without the other then, and the two round trips of Celery's own backend become none. Only
a result that is too large (:data:`LARGEST`) comes after its row, as it does without merged mode.

It stores what :class:`tasks.task.SkillTask` leaves to it: the ending of a delivered skill whose
result is wanted and that has no link, chain or chord, for those Celery publishes before the result.
All others close in ``__call__`` as ever. Whatever keeps an ending from being stored here, the hooks
of the task and the end of the tracer put it on record all the same. Decision 26.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from celery import states
from celery.backends.redis import RedisBackend, SentinelBackend
from redis.exceptions import RedisError

from audit.errors import MemoryUnavailableError, SettingsError
from audit.invocation import Invocation, State
from audit.memory.redis_url import place_of
from audit.memory.result import TaskResult
from audit.row import Outcome, Reason
from tasks.caller import child_state
from tasks.endings import ending_of
from tasks.held import agree
from tasks.hidden import is_hidden
from tasks.runtime import runtime_of

#: How the URL of the backend begins, and where Celery finds what makes it.
SCHEME: Final = "merged"
BACKEND: Final = "tasks.merged:backend_of"

#: Endings that Celery stores as a result.
MERGED: Final = frozenset(
    {Reason.RETURNED, Reason.RETURNED_AFTER_SOFT_LIMIT, Reason.RAISED, Reason.SOFT_TIME_LIMIT}
)

#: Characters of a stored result beyond which its row goes first and alone: the deadline of an emit
#: is the row's, and a result that takes long to send must not pass for an outage of the memory.
LARGEST: Final = 256 * 1024


class Merging:
    """A Redis backend of Celery's, which also puts on record how skills ended."""

    app: Any
    serializer: str
    compression: str | None
    expires: int | None
    failure_expires: int | None
    connparams: Mapping[str, Any]
    if TYPE_CHECKING:  # of the backend that this is mixed into
        client: Any

    @property
    def place(self) -> str:
        """Which database it stores in, as ``results_at`` of a memory says it."""
        to = self.connparams
        where = to.get("path") or f"{to.get('host')}:{to.get('port')}"
        return f"{where}/{to.get('db', 0)}"

    def key_of(self: Any, task_id: Any) -> str:
        """Under which key a result stands, and on which channel it is told."""
        key = self.get_key_for_task(task_id)
        return key.decode() if isinstance(key, bytes) else str(key)

    @cached_property
    def misfit(self) -> str | None:
        """Why nothing can be merged here, ``None`` where all is well."""
        memory = runtime_of(self.app).memory
        if memory.results_at is None:
            return (
                "the audit memory is none that stores results: it must be one Redis or behind"
                " sentinels, and wait for no replicas (AUDIT_MEMORY_URL: redis://...)"
            )
        if memory.results_at != self.place:
            return (
                f"results would go to {self.place}, and the audit memory is {memory.results_at}:"
                " both must be one database of one server, spelled alike"
            )
        if self.serializer != "json" or self.compression:
            return "results must be JSON and not compressed (result_serializer, result_compression)"
        if min(self.expires or 0, self.failure_expires or 0) < 0:
            return "results must not expire before they are stored (result_expires)"
        return None

    def mark_as_failure(
        self: Any,
        task_id: Any,
        exc: Any,
        traceback: Any = None,
        request: Any = None,
        store_result: bool = True,
        *rest: Any,
        **kwargs: Any,
    ) -> Any:
        """Called by Celery when a task failed, with the error as it was raised.

        A body that stores a failure by itself is running, and goes on: that ends nothing.
        """
        child = child_state(request)
        if child is not None and store_result and request.id == task_id:
            if child.invocation.state is State.STARTED and self.misfit is None:
                # It failed where no body ran: a hook of the application's, a limit before it.
                child.merged = True
                child.invocation.hold(ending_of(exc, child.values, type_only=child.type_only))
            agree(child, exc)
        return super().mark_as_failure(  # type: ignore[misc]
            task_id, exc, traceback, request, store_result, *rest, **kwargs
        )

    def _store_result(
        self: Any,
        task_id: Any,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Called by Celery with every result; those of skills that wait for it are merged."""
        invocation = _waiting(task_id, state, request)
        if invocation is not None:
            merged = self._result(task_id, result, state, traceback, request)
            if len(merged.value) > LARGEST:
                invocation.close_held()
            elif invocation.close_with(merged):
                return result
            if is_hidden(runtime_of(self.app), invocation):
                return result
        return super()._store_result(  # type: ignore[misc]
            task_id, result, state, traceback, request, **kwargs
        )

    def _result(
        self: Any, task_id: Any, result: Any, state: str, traceback: Any, request: Any
    ) -> TaskResult:
        """What Celery's own backend would write, and where."""
        meta = self._meta(result, state, traceback, request)
        meta["task_id"] = task_id
        expires = self.failure_expires if state == states.FAILURE else self.expires
        return TaskResult(
            key=self.key_of(task_id),
            value=self.encode(meta),
            seconds=expires or None,
        )

    def _meta(self: Any, result: Any, state: str, traceback: Any, request: Any) -> dict[str, Any]:
        """The fields of a result, as ``_get_result_meta`` has them.

        That looks its one setting up in every source of settings for each result; a test compares.
        """
        if self._extended:
            found: dict[str, Any] = self._get_result_meta(result, state, traceback, request)
            return found
        meta = {
            "status": state,
            "result": result,
            "traceback": traceback,
            "children": self.current_task_children(request),
            "date_done": self.app.now().isoformat(),
        }
        if getattr(request, "group", None):
            meta["group_id"] = request.group
        if getattr(request, "parent_id", None):
            meta["parent_id"] = request.parent_id
        return meta

    @cached_property
    def _extended(self: Any) -> bool:
        return bool(self.app.conf.find_value_for_key("extended", "result"))


class MergedBackend(Merging, RedisBackend):
    """On one server."""


class MergedSentinelBackend(Merging, SentinelBackend):
    """On the master that sentinels name (``master_name`` in its transport options)."""

    @property
    def place(self) -> str:
        service = self._transport_options.get("master_name")
        sentinels = sorted(place_of((to["host"], to["port"])) for to in self.connparams["hosts"])
        return f"{','.join(sentinels)}/{service}/{self.connparams.get('db', 0)}"


def backend_of(app: Any, url: str, **options: Any) -> Merging:
    """Called by Celery with what stands behind ``merged+`` in the URL."""
    kind = MergedSentinelBackend if url.startswith("sentinel:") else MergedBackend
    made: Merging = kind(app=app, url=url, **options)
    return made


def _waiting(task_id: Any, state: str, request: Any) -> Invocation | None:
    """The invocation whose ending is held for just this result; others store progress meanwhile."""
    child = child_state(request)
    if child is None or state not in (states.SUCCESS, states.FAILURE) or request.id != task_id:
        return None
    invocation: Invocation = child.invocation
    held = invocation.held_reason if child.merged else None
    if held is None or (held.outcome is Outcome.SUCCESS) is not (state == states.SUCCESS):
        return None
    return invocation


def require_fit(app: Any) -> None:
    """Called when a worker starts.

    Raises:
        SettingsError: the result backend is ours, and nothing can be merged there.
    """
    backend = app.backend
    if isinstance(backend, Merging) and backend.misfit is not None:
        raise SettingsError(f"result_backend {SCHEME}+...: {backend.misfit}")


def prove(app: Any) -> None:
    """Have the memory store a result on trial, and read it here; called when a worker starts.

    Raises:
        AuditMemoryError: it did not store, give back and announce it.
        SettingsError: whoever reads results does not find it: that is another server.
    """
    backend: Any = app.backend
    if not isinstance(backend, Merging):
        return
    key, value = backend.key_of(f"audit-probe-{uuid4().hex}"), uuid4().hex
    runtime_of(app).memory.prove_results(key, value)
    try:
        found = backend.client.get(key)
    except (RedisError, OSError) as error:
        raise MemoryUnavailableError(f"results cannot be read: {error}") from error
    if found not in (value, value.encode()):
        raise SettingsError(
            f"result_backend {SCHEME}+...: what the audit memory stores is not found there, so it"
            " is another server under the same name"
        )


def is_merged(task: Any, request: Any) -> bool:
    """Whether the backend is to put the ending of a delivered skill on record.

    Not where Celery stores no result, or publishes something before it.
    """
    backend = task.backend
    return (
        isinstance(backend, Merging)
        and not (request.called_directly or request.is_eager)
        and not (task.ignore_result or request.ignore_result)
        and not (request.callbacks or request.errbacks or request.chain or request.chord)
        and backend.misfit is None
    )
