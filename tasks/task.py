"""What happens to an invocation in the process that runs the skill's body.

``before_start`` makes the started row durable, or the body does not run. ``__call__`` runs the
body, times it, and closes the invocation there and then: Celery publishes the result and the next
link of a chain before it calls ``after_return``, and nothing of an invocation may be seen before
its completed row is on record. ``after_return`` and ``on_failure`` are the net for what
``__call__`` never saw (a soft time limit that strikes between the started row and the body).

See ``docs/decisions/0003-close-in-call.md``.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from typing import Any, Final

from celery import Task
from celery._state import _task_stack
from celery.exceptions import Ignore

from audit import metrics
from audit.canonical import arguments_by_name, digest
from audit.context import InvocationContext, Trace, enter
from audit.errors import (
    AuditEmitFailed,
    AuditMemoryError,
    CanonicalizationError,
    InvalidInvocationContext,
    MissingInvocationContext,
    NotStartedError,
    PoisonedMessageError,
    SkillArgumentsError,
    SkillDefinitionError,
)
from audit.invocation import Invocation, State
from audit.row import COMPLETED, Ending, Identity, Reason, Refusal
from tasks.caller import (
    CHILD_STATE,
    ChildState,
    child_state,
    context_headers,
    publishing_context,
)
from tasks.coroutine import run_to_its_end
from tasks.endings import ending_of, soft_limits
from tasks.identity import attempt_of, identify, redelivered, task_id_of
from tasks.refused import publish_again
from tasks.runtime import SkillRuntime, runtime_of

logger: Final = logging.getLogger("audit")

SKILL_ID: Final = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,99}")

_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

_REFUSALS: Final[Mapping[type[Exception], Refusal]] = {
    MissingInvocationContext: Refusal.MISSING_CONTEXT,
    InvalidInvocationContext: Refusal.INVALID_CONTEXT,
    SkillArgumentsError: Refusal.BAD_ARGUMENTS,
    CanonicalizationError: Refusal.UNCANONICAL_ARGUMENTS,
    PoisonedMessageError: Refusal.POISON,
}


class SkillTask(Task):
    """A Celery task whose every invocation leaves two rows.

    Attributes:
        version: the skill's version, e.g. ``"1.0.0"``; a skill without one cannot be declared.
        retry_when_refused: publish the message again, later, when the memory does not take the
            started row; for callers who never read the result, as beat.
        max_refusals: how often at most.
    """

    abstract = True
    Request = "tasks.request:SkillRequest"
    version: str = ""
    retry_when_refused: bool = False
    max_refusals: int = 12

    # --- declaration --------------------------------------------------------------------------

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Called by Celery when it makes the task: refuses one that could not be audited."""
        cls.check_declaration(cls.name, cls.version)
        if cls.__call__ is not SkillTask.__call__:
            raise SkillDefinitionError(
                f"skill {cls.name}: its class overrides __call__, in which invocations are closed"
            )
        super().on_bound(app)

    @staticmethod
    def check_declaration(skill_id: object, version: object) -> None:
        """Refuse a declaration that could not be audited.

        Raises:
            SkillDefinitionError: the id or the version cannot be used.
        """
        if not isinstance(skill_id, str) or len(skill_id) > 200 or not SKILL_ID.fullmatch(skill_id):
            raise SkillDefinitionError(
                f"skill id {skill_id!r} must be words of a-z and 0-9 joined by . _ or -, like"
                " 'obs.triage-alert', at most 200 characters"
            )
        if not isinstance(version, str) or not VERSION.fullmatch(version):
            raise SkillDefinitionError(
                f"skill {skill_id} needs a version, like version='1.0.0'; got {version!r}"
            )

    @cached_property
    def parameters(self) -> inspect.Signature:
        """The signature of the body, without ``self``."""
        return inspect.signature(self.run)

    def args_hash(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """SHA-256 of the arguments by name (decision 6).

        Raises:
            SkillArgumentsError: they do not fit the signature.
            CanonicalizationError: a value has no canonical form.
        """
        if not (isinstance(args, list | tuple) and isinstance(kwargs, Mapping)):
            raise SkillArgumentsError(
                "arguments must be a list and an object, got"
                f" {type(args).__name__} and {type(kwargs).__name__}"
            )
        return digest(arguments_by_name(self.parameters, args, kwargs))

    def fits_errback(self, errback: Mapping[str, Any]) -> bool:
        """Whether Celery would publish this skill as an errback, with arguments that fit.

        It puts the id of the failed task before what the signature brings along, and calls a body
        inline that could take more than that.
        """
        args, kwargs = tuple(errback.get("args") or ()), errback.get("kwargs") or {}
        immutable = bool(errback.get("immutable"))
        try:
            self.parameters.bind(*(args if immutable else ("id", *args)), **kwargs)
        except TypeError:
            return False
        places = [p for p in self.parameters.parameters.values() if p.kind in _BY_PLACE]
        taken = 0 if immutable else len(args) + sum(p.name in kwargs for p in places)
        various = any(p.kind is p.VAR_POSITIONAL for p in self.parameters.parameters.values())
        return len(places) - taken <= 1 and not various

    # --- the life of an invocation ------------------------------------------------------------

    def before_start(self, task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Called by Celery's tracer before the body: the gate.

        Raises:
            AuditEmitFailed: the started row is not durable (503).
            Retry: so it is, and the message was published again (``retry_when_refused``).
            MissingInvocationContext, InvalidInvocationContext, SkillArgumentsError,
            CanonicalizationError, PoisonedMessageError: the invocation is refused.
        """
        super().before_start(task_id, args, kwargs)
        request = self.request_stack.top
        headers = context_headers(request)
        try:
            self._start(request, args, kwargs, lambda: InvocationContext.from_headers(headers))
        except AuditEmitFailed as error:
            publish_again(self, request, args, kwargs, error)
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called by the tracer after ``before_start``, or by anyone as a plain function."""
        request = self.request_stack.top
        if request is None or request.called_directly:
            return self._call_directly(args, kwargs)
        state = child_state(request)
        if state is None or state.invocation.state in _NEVER_STARTED:
            raise NotStartedError(
                f"skill {self.name} was delivered without a started row: a before_start of its own"
                " must call super().before_start(task_id, args, kwargs)"
            )
        if state.invocation.state is not State.STARTED:
            return self._call_directly(args, kwargs)  # a body that calls its own skill
        try:
            return self._perform(state, args, kwargs)
        except BaseException as error:
            self._close_if_open(state, error, args, kwargs)
            raise

    def on_failure(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called by Celery when the task failed: closes what ``__call__`` never saw."""
        self._close_if_open(child_state(self.request_stack.top), exc, args, kwargs)
        super().on_failure(exc, task_id, args, kwargs, einfo)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called by Celery last of all: closes what is open even now."""
        self._close_if_open(child_state(self.request_stack.top), retval, args, kwargs)
        super().after_return(status, retval, task_id, args, kwargs, einfo)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Run eagerly. Without a caller this raises here, as publishing would.

        Raises:
            MissingInvocationContext: nobody said who calls and for which tenant.
        """
        headers = dict(kwargs.pop("headers", None) or {})
        context = publishing_context() or InvocationContext.from_headers(headers)
        return super().apply(*args, headers={**headers, **context.headers()}, **kwargs)

    # --- inside -------------------------------------------------------------------------------

    @property
    def _runtime(self) -> SkillRuntime:
        return runtime_of(self.app)

    def _call_directly(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A direct call is an invocation of its own; its caller sees every error as it is."""
        context = publishing_context()
        if context is None:
            raise MissingInvocationContext
        _task_stack.push(self)
        self.push_request(args=args, kwargs=kwargs)
        request = self.request_stack.top
        try:
            state = self._start(request, args, kwargs, lambda: context)
            return self._perform(state, args, kwargs)
        except BaseException as error:
            self._close_if_open(child_state(request), error, args, kwargs)
            raise
        finally:
            self.pop_request()
            _task_stack.pop()

    def _start(
        self,
        request: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        find: Callable[[], InvocationContext],
    ) -> ChildState:
        """From a received message to a durable started row."""
        try:
            context = find()
            args_hash = self.args_hash(args, kwargs)
            self._refuse_poison(vars(request), context)
        except tuple(_REFUSALS) as error:
            self._refuse(request, find, error)
            raise
        place = context.trace or Trace.current() or Trace.fresh()
        context = context.in_trace(place)
        runtime = self._runtime
        delivered = not (request.called_directly or request.is_eager)
        worker = runtime.worker_id if delivered else runtime.own_id
        identity = identify(self, vars(request), context, worker)
        invocation = Invocation(identity, runtime.recorder)
        state = ChildState(invocation, context.published_by(identity.request_id))
        vars(request)[CHILD_STATE] = state
        try:
            invocation.start(args_hash)
        except AuditEmitFailed:
            state.inherited = context  # what never was is nobody's parent
            raise
        except BaseException as error:
            # A signal may have struck with the row on record, and after SystemExit no hook follows.
            self._close_if_open(state, error, args, kwargs)
            raise
        return state

    def _refuse_poison(self, message: Mapping[str, Any], context: InvocationContext) -> None:
        """A message that workers die over is redelivered without end; enough is enough.

        Raises:
            PoisonedMessageError: ``audit_max_deaths`` workers died over it.
            AuditEmitFailed: the memory does not tell.
        """
        if not redelivered(message):
            return
        most = self._runtime.settings.max_deaths
        name = f"{task_id_of(message)}/{attempt_of(message)}"
        try:
            deaths = self._runtime.recorder.deaths(context.tenant_id, name)
        except AuditMemoryError as error:
            metrics.emit_failed("start")
            logger.critical(
                "the memory does not tell how often %s was fatal, skill %s not dispatched: %s",
                name,
                self.name,
                error,
                extra={"severity": "sev-1"},
            )
            raise AuditEmitFailed("start", str(error)) from error
        if deaths >= most:
            raise PoisonedMessageError(
                f"{deaths} workers died over this message, at most {most} may (audit_max_deaths):"
                " mend the skill or its arguments, then call it again"
            )

    def _refuse(
        self, request: Any, find: Callable[[], InvocationContext], error: Exception
    ) -> None:
        """Put on record that the invocation was not allowed to start."""
        try:
            context: InvocationContext | None = find()
        except (MissingInvocationContext, InvalidInvocationContext):
            context = None
        refusal = next(word for kind, word in _REFUSALS.items() if isinstance(error, kind))
        runtime = self._runtime
        identity = identify(self, vars(request), context, runtime.worker_id)
        Invocation(identity, runtime.recorder).refuse(refusal, str(error))

    def _perform(self, state: ChildState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the body and close the invocation, whatever leaves the body.

        A signal may strike on any line; then the caller of this, or a hook, closes what is open.
        """
        invocation: Invocation = state.invocation
        try:
            struck = soft_limits.watch()
            result = self._timed_body(state, args, kwargs)
            swallowed = soft_limits.struck != struck
            self._close_returned(invocation, result, args, kwargs, swallowed=swallowed)
        except BaseException as error:
            enter(state.outside)
            self._close_if_open(state, error, args, kwargs)
            self._let_nothing_out_if_killed(invocation)
            raise
        self._let_nothing_out_if_killed(invocation)
        return result

    def _let_nothing_out_if_killed(self, invocation: Invocation) -> None:
        """A hard time limit is on record: the caller was told so, and nothing else may follow.

        Raises:
            Ignore: Celery stores no result and publishes nothing.
        """
        killed = invocation.late and (
            self._closed_as(invocation.identity) is Reason.HARD_TIME_LIMIT
        )
        if killed or invocation.overtaken:
            raise Ignore("the hard time limit was faster")

    def _closed_as(self, identity: Identity) -> Reason | None:
        try:
            rows = self._runtime.memory.rows(
                tenant_id=identity.tenant_id, request_id=identity.request_id, kind=COMPLETED
            )
            return next((Reason(row.meta["reason"]) for row in rows), None)
        except AuditMemoryError:
            return None

    def _timed_body(self, state: ChildState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The body, on the clock and on behalf of its caller."""
        enter(state.inherited)
        try:
            state.invocation.begin()
            return self._body(args, kwargs)
        finally:
            state.invocation.ended()
            enter(state.outside)

    def _close_returned(
        self,
        invocation: Invocation,
        result: Any,
        args: Any,
        kwargs: Any,
        *,
        swallowed: bool = False,
    ) -> None:
        """Close a body that returned.

        Raises:
            CanonicalizationError: the result has no canonical form; the row says error (15).
        """
        try:
            result_hash = digest(result)
        except CanonicalizationError as error:
            uncanonical = self._ending(error, args, kwargs, Reason.UNCANONICAL_RESULT)
            invocation.close(uncanonical)
            raise
        reason = Reason.RETURNED_AFTER_SOFT_LIMIT if swallowed else Reason.RETURNED
        invocation.close(Ending(reason=reason, result_hash=result_hash))

    def _ending(
        self, error: BaseException, args: Any, kwargs: Any, reason: Reason | None = None
    ) -> Ending:
        type_only = self._runtime.settings.error_message == "type"
        # The values alone: parameter names stand in the skill's own code.
        values = (args, list(kwargs.values()))
        return ending_of(error, values, type_only=type_only, reason=reason)

    def _close_if_open(self, state: ChildState | None, left: Any, args: Any, kwargs: Any) -> None:
        if state is None or not state.invocation.open:
            return
        if isinstance(left, BaseException):
            state.invocation.close(self._ending(left, args, kwargs))
        else:
            self._close_returned(state.invocation, left, args, kwargs)

    def _body(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The bare body; an ``async def`` one is run to its end."""
        result = self.run(*args, **kwargs)
        if inspect.iscoroutine(result):
            return run_to_its_end(self, result)
        return result


_NEVER_STARTED: Final = (State.RECEIVED, State.REFUSED, State.NOT_STARTED)
