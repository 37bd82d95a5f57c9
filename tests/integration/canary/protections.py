"""Every protection against leaks, how to switch it off, and where a secret shows up then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery.app.amqp import AMQP

from tasks import amqp, caller, discretion, endings, reception, redaction, request, task, telemetry


@dataclass(frozen=True)
class Protection:
    """One protection.

    Attributes:
        off: patches it away in the process that calls this, before it declares skills.
        channel: where a secret must show up without it.
        ways: names of ways to publish that are enough to see that.
    """

    off: Callable[[], None]
    channel: str
    ways: tuple[str, ...]


def put(place: Any, name: str, value: Any) -> Callable[[], None]:
    """Put a value in the place of a protection."""
    return lambda: setattr(place, name, value)


def without(place: Any, name: str) -> Callable[[], None]:
    """Take a protection away, so that what it overrides is in force."""
    return lambda: delattr(place, name)


def withheld_texts_off() -> None:
    redaction._OF_WHICHEVER = redaction._OF_ANOTHER = ()  # type: ignore[misc]


def results_as_they_are() -> None:
    """Both what the child tells and the main process's second look at it."""
    task.discreet = lambda skill, tracer: tracer
    del request.DiscreetRequest.send_event


def what_ends_a_process_as_it_is() -> None:
    """Neither masked in place, nor replaced where it shows all the same."""
    discretion.mask_error = lambda *_, **__: None
    discretion._still_shows = lambda error, state: False


def unmasked(error: BaseException, *_: Any, **__: Any) -> str:
    return f"{type(error).__qualname__}: {error}"[:1024]


PROTECTIONS: dict[str, Protection] = {
    "results are shown as hashes": Protection(results_as_they_are, "events", ("delay",)),
    "failures are masked": Protection(
        put(task, "mask_failure", lambda *_: None), "signals", ("fails, raw", "retry")
    ),
    "failures are masked before hooks without super()": Protection(
        put(task, "masking_first", lambda hook: hook), "signals", ("own hook",)
    ),
    "what ends a process is masked": Protection(
        what_ends_a_process_as_it_is, "events", ("panic", "exit")
    ),
    "log records are redacted": Protection(
        put(redaction, "install", lambda: None), "logs", ("delay", "logs")
    ),
    "own spans are masked": Protection(
        put(telemetry, "MaskedSpans", lambda inner: inner), "spans", ("span",)
    ),
    "hashes for reprs, published": Protection(
        put(amqp.SkillAMQP, "as_task_v2", AMQP.as_task_v2), "events", ("delay",)
    ),
    "hashes for reprs, received": Protection(
        put(request.SkillRequest, "_arguments_shown", lambda self: self._argsrepr),
        "events",
        ("plain Celery",),
    ),
    "no arguments in inspect": Protection(without(request.DiscreetRequest, "info"), "inspect", ()),
    "results that the main process reads back": Protection(
        without(request.DiscreetRequest, "send_event"), "events", ("killed after success",)
    ),
    "dumps of messages are withheld": Protection(
        put(redaction, "_DUMPS", {}), "logs", ("undecodable", "unknown skill")
    ),
    "texts of another invocation's errors are withheld": Protection(
        withheld_texts_off, "logs", ("chord, failing",)
    ),
    "excluded bodies": Protection(
        put(task, "result_of", lambda skill, state, result: result), "results", ("body excluded",)
    ),
    "flowerconfig.py": Protection(lambda: None, "Flower API", ("delay",)),
    "error messages of rows are masked": Protection(
        put(endings, "error_message", unmasked), "rows", ("fails, raw",)
    ),
    "errors outside a body are withheld": Protection(
        put(redaction, "_withhold_internal_error", lambda record: None),
        "logs",
        ("bad hook, not run",),
    ),
    "Celery's own tasks are discreet": Protection(
        put(reception, "make_discreet", lambda task: None), "events", ("starmap, failing",)
    ),
    "errors that leave the tracer are masked": Protection(
        put(discretion, "_out_of_tracer", lambda task, error, args, kwargs: error),
        "events",
        ("bad hook",),
    ),
    "what an invocation hides later": Protection(
        put(caller.ChildState, "hide", lambda self, *values: None),
        "logs",
        ("telling hooks", "retries exceeded with other arguments", "quotes what it called"),
    ),
    "values as they were before the body": Protection(
        put(caller, "snapshot", lambda value: value),
        "logs",
        ("takes out of its arguments", "takes out of a result"),
    ),
    "panics that print what they like": Protection(
        put(discretion, "_still_shows", lambda error, state: False), "events", ("telling panic",)
    ),
    "extras of log records are masked": Protection(
        put(redaction, "Extras", lambda attributes, values: attributes), "log records", ("logs",)
    ),
}


#: Channels by which Celery tells of tasks; the tests of these protections are a file of their own.
TOLD = ("events", "signals", "inspect")


def switch_off(name: str) -> None:
    """Patch one protection away; none where ``name`` is empty."""
    if name:
        PROTECTIONS[name].off()
