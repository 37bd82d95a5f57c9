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
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from celery import Task
from celery._state import _task_stack
from celery.exceptions import Ignore

from audit.canonical import arguments_by_name, digest
from audit.context import InvocationContext, Trace, enter
from audit.errors import (
    AuditEmitFailed,
    CanonicalizationError,
    MissingInvocationContext,
    NotStartedError,
    SkillArgumentsError,
    SkillDefinitionError,
    TickTakenError,
)
from audit.invocation import Invocation, State
from audit.keys import Key, KeyRing
from audit.row import Ending, Reason
from audit.schedule import Tick
from tasks import redaction
from tasks.caller import (
    CHILD_STATE,
    ChildState,
    child_state,
    context_headers,
    one_task,
    publishing_context,
    running,
    runs,
)
from tasks.coroutine import run_to_its_end
from tasks.declaration import check_declaration, fits_errback
from tasks.discretion import (
    MASKING_HOOKS,
    discreet,
    error_of,
    mask_failure,
    masking_first,
    result_of,
    type_only,
    values_of,
)
from tasks.endings import ending_of, soft_limits
from tasks.held import close_held
from tasks.hidden import is_hidden
from tasks.identity import hold_of, identify
from tasks.merged import MERGED, is_merged
from tasks.proof import message_token, proven_context
from tasks.refusal import REFUSALS, refuse, refuse_poison
from tasks.refused import publish_again
from tasks.reprs import shown
from tasks.runtime import SkillRuntime, runtime_of
from tasks.standin import is_stand_in


class SkillTask(Task):
    """A Celery task whose every invocation leaves two rows.

    Attributes:
        version: the skill's version, e.g. ``"1.0.0"``; a skill without one cannot be declared.
        retry_when_refused: publish the message again, later, when the memory does not take the
            started row; for callers who never read the result, as beat.
        max_refusals: how often at most.
        body_excluded: nothing of arguments, result and errors stays anywhere but in the message:
            the caller gets ``{"request_id": ..., "result_hash": ...}`` in the place of the result,
            and :class:`audit.errors.BodyExcludedError` in the place of an error.
    """

    abstract = True
    Request = "tasks.request:SkillRequest"
    version: str = ""
    retry_when_refused: bool = False
    max_refusals: int = 12
    body_excluded: bool = False

    # --- declaration --------------------------------------------------------------------------

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Called by Celery when it makes the task: refuses one that could not be audited."""
        check_declaration(cls.name, cls.version)
        if cls.__call__ is not SkillTask.__call__:
            raise SkillDefinitionError(
                f"skill {cls.name}: its class overrides __call__, in which invocations are closed"
            )
        for hook in MASKING_HOOKS:
            if (own := getattr(cls, hook)) is not getattr(SkillTask, hook):
                setattr(cls, hook, masking_first(own))
        super().on_bound(app)

    @cached_property
    def parameters(self) -> inspect.Signature:
        """The signature of the body, without ``self``."""
        return inspect.signature(self.run)

    def args_hash(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], key: Key | None = None
    ) -> str:
        """The hash of the arguments by name (decision 6), keyed with ``key``.

        Raises:
            SkillArgumentsError: they do not fit the signature.
            CanonicalizationError: a value has no canonical form.
        """
        if not (isinstance(args, list | tuple) and isinstance(kwargs, Mapping)):
            raise SkillArgumentsError(
                "arguments must be a list and an object, got"
                f" {type(args).__name__} and {type(kwargs).__name__}"
            )
        return digest(arguments_by_name(self.parameters, args, kwargs), key)

    def fits_errback(self, errback: Mapping[str, Any]) -> bool:
        """Whether Celery would publish this skill as an errback, with arguments that fit."""
        return fits_errback(self.parameters, errback)

    # --- the life of an invocation ------------------------------------------------------------

    def before_start(self, task_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Called by Celery's tracer before the body: the gate.

        Raises:
            AuditEmitFailed: the started row is not durable (503).
            Retry: so it is, and the message was published again (``retry_when_refused``).
            InvocationError, SkillArgumentsError, CanonicalizationError: it is refused.
        """
        super().before_start(task_id, args, kwargs)
        request = self.request_stack.top
        headers, message = context_headers(request), vars(request)
        # An eager call is one of this very process, and there is no message that proves anything.
        keys = KeyRing() if request.is_eager else self._runtime.settings.context_keys
        try:
            self._start(request, args, kwargs, lambda: proven_context(message, headers, keys))
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
            if not (state.merged and state.invocation.held):
                self._close_if_open(state, error)
            leaving = error_of(self, state, error)
            if leaving is error:
                raise
        raise leaving  # out here, where the other one does not become its context

    def on_failure(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called by Celery when the task failed: closes what ``__call__`` never saw.

        The result backend has the error by now; what Celery passes on from here is masked.
        """
        self._close_if_open(child_state(self.request_stack.top), exc)
        mask_failure(self, einfo, args, kwargs)
        super().on_failure(exc, task_id, args, kwargs, einfo)

    def on_retry(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called by Celery when the task is to be tried again."""
        mask_failure(self, einfo, args, kwargs)
        super().on_retry(exc, task_id, args, kwargs, einfo)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called by Celery last of all: closes what is open even now."""
        self._close_if_open(child_state(self.request_stack.top), retval)
        super().after_return(status, retval, task_id, args, kwargs, einfo)

    def retry(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Called by a body; Celery quotes the next attempt's arguments when there is none left.

        Raises:
            Retry: the message was published again.
            Exception: ``exc``, or MaxRetriesExceededError, when there is no attempt left.
        """
        state = child_state(self.request_stack.top)
        if state is not None:
            state.hide(values_of(args, kwargs))
        return super().retry(args, kwargs, *rest, **options)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Run eagerly. Without a caller this raises here, as publishing would.

        Raises:
            MissingInvocationContext: nobody said who calls and for which tenant.
        """
        headers = dict(kwargs.pop("headers", None) or {})
        context = publishing_context() or InvocationContext.from_headers(headers)
        with one_task(nested=True):
            result = super().apply(*args, headers={**headers, **context.headers()}, **kwargs)
        if is_stand_in(result._result):
            result._result = result._result.original  # its caller is here, and nobody else
        return result

    @property
    def __trace__(self) -> Any:
        """Celery's tracer of this task, which runs it and returns what the worker tells of it."""
        return self._tracer

    @__trace__.setter
    def __trace__(self, tracer: Any) -> None:
        self._tracer = tracer and discreet(self, tracer)

    _tracer: Any = None

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
        # A copy of the request around it, as Celery pushes, for the body to read. The invocation
        # is of no message all the same: not of its id, its proof or its state.
        self.push_request(args=args, kwargs=kwargs, **{CHILD_STATE: None})
        request = self.request_stack.top
        try:
            with one_task(nested=True):
                state = self._start(request, args, kwargs, lambda: context, direct=True)
                result = self._perform(state, args, kwargs)
            if (around := running()) is not None:
                around.hide((values_of(args, kwargs), result))
            return result
        except BaseException as error:
            self._close_if_open(child_state(request), error)
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
        *,
        direct: bool = False,
    ) -> ChildState:
        """From a received message, or a direct call, to a durable started row."""
        runtime = self._runtime
        message: Mapping[str, Any] = {} if direct else vars(request)
        if runtime.settings.redact_logs:
            redaction.install()
        try:
            context, tick = find(), Tick.from_headers(message)
            args_hash = self.args_hash(args, kwargs, runtime.hash_key(context.tenant_id))
            refuse_poison(self, message, context)
        except tuple(REFUSALS) as error:
            refuse(self, message, find, error)
            raise
        place = context.trace or Trace.current() or Trace.fresh()
        context = context.in_trace(place)
        delivered = not (direct or request.is_eager)
        worker = runtime.worker_id if delivered else runtime.own_id
        identity = identify(self, message, context, worker)
        invocation = Invocation(identity, runtime.recorder)
        state = ChildState(
            invocation,
            context.published_by(identity.request_id),
            values_of(args, kwargs),
            args_shown=shown(args_hash),
            type_only=type_only(self),
            direct=direct,
        )
        vars(request)[CHILD_STATE] = state
        runs(state)
        try:
            seconds = math.ceil(runtime.settings.context_max_age)
            token = message_token(message)
            hold = hold_of(identity, tick)
            invocation.start(args_hash, once_token=token, once_seconds=seconds, hold=hold)
        except (AuditEmitFailed, TickTakenError):
            state.inherited = context  # what never was is nobody's parent
            raise
        except BaseException as error:
            # A signal may have struck with the row on record, and after SystemExit no hook follows.
            self._close_if_open(state, error)
            raise
        return state

    def _perform(self, state: ChildState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the body and close the invocation, whatever leaves the body.

        A signal may strike on any line; then the caller of this, or a hook, closes what is open.
        """
        invocation: Invocation = state.invocation
        try:
            struck = soft_limits.watch()
            result = self._timed_body(state, args, kwargs)
            swallowed = soft_limits.struck != struck
            self._decide(state, self._returned(state, result, swallowed=swallowed))
        except BaseException as error:
            enter(state.outside)
            if invocation.open:
                self._decide(state, self._ending(state, error))
            self._let_nothing_out_if_killed(invocation)
            raise
        self._let_nothing_out_if_killed(invocation)
        return result_of(self, state, result)

    def _let_nothing_out_if_killed(self, invocation: Invocation) -> None:
        """A hard time limit is on record: the caller was told so, and nothing else may follow.

        Raises:
            Ignore: Celery stores no result and publishes nothing.
        """
        if is_hidden(self._runtime, invocation):
            raise Ignore("the hard time limit was faster")

    def _timed_body(self, state: ChildState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The body, on the clock and on behalf of its caller."""
        enter(state.inherited)
        try:
            state.invocation.begin()
            return self._body(args, kwargs)
        finally:
            state.invocation.ended()
            enter(state.outside)

    def _decide(self, state: ChildState, ending: Ending) -> None:
        """Put the ending on record, or, in merged mode, leave that to who stores the result."""
        # Asked now: a body may have given its own request a link.
        merged = ending.reason in MERGED and is_merged(self, self.request_stack.top)
        state.merged = merged and not state.direct
        if state.merged:
            state.invocation.hold(ending)
        else:
            state.invocation.close(ending)

    def _returned(self, state: ChildState, result: Any, *, swallowed: bool = False) -> Ending:
        """The ending of a body that returned.

        Raises:
            CanonicalizationError: the result has no canonical form; the row says error (15).
        """
        invocation: Invocation = state.invocation
        try:
            result_hash = digest(result, self._runtime.hash_key(invocation.identity.tenant_id))
        except CanonicalizationError as error:
            invocation.close(self._ending(state, error, Reason.UNCANONICAL_RESULT))
            raise
        state.result_shown = shown(result_hash)
        state.hide(result)
        reason = Reason.RETURNED_AFTER_SOFT_LIMIT if swallowed else Reason.RETURNED
        return Ending(reason=reason, result_hash=result_hash)

    def _ending(
        self, state: ChildState, error: BaseException, reason: Reason | None = None
    ) -> Ending:
        return ending_of(error, state.values, type_only=state.type_only, reason=reason)

    def _close_if_open(self, state: ChildState | None, left: Any) -> None:
        if state is None or not state.invocation.open:
            return
        if state.merged and state.invocation.held:
            close_held(state, left)
        elif isinstance(left, BaseException):
            state.invocation.close(self._ending(state, left))
        else:
            state.invocation.close(self._returned(state, left))

    # --- the body -----------------------------------------------------------------------------

    def _body(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The bare body; an ``async def`` one is run to its end."""
        result = self.run(*args, **kwargs)
        if inspect.iscoroutine(result):
            return run_to_its_end(self, result)
        return result


_NEVER_STARTED: Final = (State.RECEIVED, State.REFUSED, State.NOT_STARTED)
