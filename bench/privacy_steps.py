"""The steps of an invocation in which signing and masking have a part, each with and without it.

Everything runs in this process, so that no network and no fork hides microseconds: kombu's memory
for a broker, Celery's for results, and for rows a memory that keeps none. Only the start speaks to
a real server, whose script is what is asked about there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Final
from uuid import uuid4

from celery.app.trace import build_tracer

from audit import acting_as
from audit.canonical import digest
from audit.invocation import new_request_id
from audit.keys import KeyRing
from audit.memory import AuditMemory
from audit.memory.base import Hold, Once, Stored
from audit.row import AuditRow, Identity, skill_invoked_started
from audit.testing import InMemory
from bench.sides.audited import TENANT
from tasks.caller import REQUEST_ID_HEADER
from tasks.discretion import discreet
from tasks.host import SkillHost
from tasks.redaction import Redaction
from tasks.request import SkillRequest
from tasks.runtime import SkillRuntime, runtime_of

#: Gets ready, untimed, and gives what is timed.
Way = Callable[[], Callable[[], object]]

#: Hashes of one success: the arguments where it is published and where it runs, and the result.
HASHES: Final = 3
PERSONA: Final = "cuo-bench@1.0.0"
KEYS: Final = [{"id": "bench", "secret": "only-for-the-bench-no-secret-at-all"}]
TOKEN_SECONDS: Final = 3600
_TS: Final = "2026-01-01T00:00:00.000000Z"
_LINE: Final = 32

body_log: Final = logging.getLogger("bench.body")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of an invocation.

    Attributes:
        what: the step, and what is added in it.
        kib: size of the arguments, in KiB.
        without: the way without what is added.
        with_it: the way with it.
        times: how often a success goes this way; 0 for what is no part of it.
        clock: seconds; CPU time, which other processes of the machine take no part in.
    """

    what: str
    kib: int
    without: Way
    with_it: Way
    times: int = 1
    clock: Callable[[], float] = time.thread_time


class NoRows(InMemory):
    """Takes every row, and keeps none: what is measured does not slow down over time."""

    def emit(self, row: AuditRow, once: Once | None = None, hold: Hold | None = None) -> Stored:
        row.to_bytes()
        return Stored.NEW


class Runtime(SkillRuntime):
    """A runtime whose rows go nowhere."""

    def _open_memory(self, at_most: float = 0.0) -> AuditMemory:
        return NoRows()


def all_steps(kib: int, spool_dir: str, memory: AuditMemory) -> list[Step]:
    """Every step with arguments of that size; ``memory`` is the one to start in."""
    plain, signed = _host(spool_dir), _host(spool_dir, audit_context_keys=KEYS)
    alert = make_alert(kib)
    own = _received(signed, alert)
    foreign = (own[0], {**own[1], "argsrepr": repr((alert,)), "kwargsrepr": "{}"})
    ring = KeyRing.parse(KEYS).keys[0]
    return [
        Step(
            what="publish: signed",
            kib=kib,
            without=_publish(plain, alert),
            with_it=_publish(signed, alert),
        ),
        Step(
            what="receive: proof verified",
            kib=kib,
            without=_receive(plain, *own),
            with_it=_receive(signed, *own),
        ),
        Step(
            what="receive, foreign reprs: proof verified",
            kib=kib,
            without=_receive(plain, *foreign),
            with_it=_receive(signed, *foreign),
            times=0,
        ),
        Step(
            what="receive: foreign reprs made hashes",
            kib=kib,
            without=_receive(plain, *own),
            with_it=_receive(plain, *foreign),
            times=0,
        ),
        *_runs(kib, spool_dir, alert),
        Step(
            what="start: with a token of its message",
            kib=kib,
            without=_start(memory, once=False),
            with_it=_start(memory, once=True),
            clock=time.perf_counter,
        ),
        Step(
            what=f"one hash, keyed ({HASHES} a success)",
            kib=kib,
            without=lambda: lambda: digest(alert),
            with_it=lambda: lambda: digest(alert, ring),
            times=HASHES,
        ),
    ]


def make_alert(kib: int) -> dict[str, Any]:
    """An argument of that many KiB of JSON, in lines of text that never repeat."""
    lines = [token_hex(_LINE // 2) for _ in range(kib * 1024 // (_LINE + 4))]
    return {"id": lines[0], "lines": lines}


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Every logger makes records from INFO on, and nobody writes them; all as before afterwards."""
    root, handler = logging.getLogger(), logging.NullHandler()
    factory, level = logging.getLogRecordFactory(), root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        logging.setLogRecordFactory(factory)


# --- the ways -------------------------------------------------------------------------------------


def returns(alert: Any) -> int:
    return len(alert["lines"])


def logs(alert: Any) -> int:
    body_log.info("looking at %s", alert["lines"][-1])
    return len(alert["lines"])


def raises(alert: Any) -> int:
    raise ValueError(f"cannot use {alert['lines'][-1]}")


def _host(spool_dir: str, **settings: Any) -> SkillHost:
    app = SkillHost("bench", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(
        task_default_queue=f"bench-{uuid4()}",
        audit_instrument=False,
        audit_spool_dir=spool_dir,
        audit_hash_keys=[],
        **{"audit_context_keys": [], **settings},
    )
    app.skill_runtime = Runtime(app)
    runtime_of(app).boot_worker()
    for body in (returns, logs, raises):
        app.skill(f"bench.{body.__name__}", version="1.0.0")(body)
    app.finalize()
    return app


def _channel(app: SkillHost) -> Any:
    channel = app.connection_for_read().default_channel
    channel.queue_declare(app.conf.task_default_queue)
    return channel


def _publish(app: SkillHost, alert: Any) -> Way:
    channel, skill = _channel(app), app.tasks["bench.returns"]

    def publish() -> None:
        with acting_as(PERSONA, TENANT):
            skill.apply_async((alert,))

    def prepare() -> Callable[[], object]:
        channel.queue_purge(app.conf.task_default_queue)
        return publish

    return prepare


def _received(app: SkillHost, alert: Any) -> tuple[Any, dict[str, Any]]:
    """A message that ``app`` published, and its headers."""
    _publish(app, alert)()()
    message = _channel(app).basic_get(app.conf.task_default_queue)
    return message, dict(message.headers)


def _receive(app: SkillHost, message: Any, headers: dict[str, Any]) -> Way:
    def prepare() -> Callable[[], object]:
        parts = {"headers": dict(headers), "body": message.body, "decoded": False}
        return lambda: SkillRequest(message, app=app, **parts)

    return prepare


def _runs(kib: int, spool_dir: str, alert: Any) -> Iterator[Step]:
    open_logs, redacted = _host(spool_dir, audit_redact_logs=False), _host(spool_dir)
    for name, what, times in (
        ("returns", "run, success", 1),
        ("logs", "run, success whose body logs an argument", 0),
        ("raises", "run, error that quotes an argument", 0),
    ):
        bare = _run(open_logs, name, alert, tell=lambda _, tracer: tracer)
        yield Step(
            what=f"{what}: masked for others",
            kib=kib,
            without=bare,
            with_it=_run(open_logs, name, alert, tell=discreet),
            times=0,
        )
        yield Step(
            what=f"{what}: masked for others, logs redacted",
            kib=kib,
            without=bare,
            with_it=_run(redacted, name, alert, tell=discreet),
            times=times,
        )


def _run(app: SkillHost, name: str, alert: Any, *, tell: Callable[[Any, Any], Any]) -> Way:
    """One run by Celery's tracer, as a pool child does it."""
    skill = app.tasks[f"bench.{name}"]
    tracer = tell(skill, build_tracer(skill.name, skill, app=app))
    _, headers = _received(app, alert)
    headers.update(task=skill.name, args=[alert], kwargs={}, hostname="bench", is_eager=False)
    plain = logging.LogRecord
    factory = Redaction(plain) if runtime_of(app).settings.redact_logs else plain
    ran: list[str] = []

    def prepare() -> Callable[[], object]:
        while ran:
            app.backend.forget(ran.pop())
        logging.setLogRecordFactory(factory)
        ran.append(str(uuid4()))
        request = {**headers, "id": ran[0], REQUEST_ID_HEADER: new_request_id()}
        # In a context of its own: a tracer that is not discreet leaves its invocation in force.
        return partial(copy_context().run, tracer, ran[0], [alert], {}, request)

    return prepare


def _start(memory: AuditMemory, *, once: bool) -> Way:
    def prepare() -> Callable[[], object]:
        row, token = _started(), token_hex(32)
        if once:
            return lambda: memory.emit(row, Once(token=token, seconds=TOKEN_SECONDS))
        return lambda: memory.emit(row)

    return prepare


def _started() -> AuditRow:
    identity = Identity(
        request_id=new_request_id(),
        skill_id="bench.returns",
        version="1.0.0",
        caller_persona=PERSONA,
        tenant_id=TENANT,
        trace_id=token_hex(16),
        task_id=str(uuid4()),
        worker="bench",
    )
    return skill_invoked_started(identity, token_hex(32), ts=_TS)
