"""The skills that integration tests run, declared in whatever app a test makes.

Each body that matters writes a line to ``$JOURNAL`` first (O_APPEND, so that processes do not mix),
which is how a test knows that a body ran, whatever rows or results say.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from audit import current_context
from tasks import SkillTask
from tasks.caller import REQUEST_ID_HEADER
from tasks.host import skill
from tests.integration.publishers import declare_publishers


def journal(line: str) -> None:
    path = os.environ.get("JOURNAL")
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


class Deadly:
    """A result that kills its process when it is written for the second time: hashed, stored."""

    def __init__(self) -> None:
        self._written = 0

    def __json__(self) -> str:
        self._written += 1
        if self._written > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "deadly"


class OwnPanic(BaseException):
    """A panic of a library's own."""


class ForgetfulTask(SkillTask):
    """Overrides before_start without calling super: its body must never run."""

    abstract = True

    def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
        pass


class SwallowingTask(SkillTask):
    """Overrides before_start and swallows what the gate raises: its body must not run then."""

    abstract = True

    def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            super().before_start(task_id, args, kwargs)


def declare(app: Celery) -> SimpleNamespace:
    """Declare every test skill in ``app``; they come back by name."""

    @skill("test.noop", version="1.0.0", app=app)
    def noop(*args: Any, **kwargs: Any) -> None:
        return None

    @skill("test.echo", version="1.2.0", app=app)
    def echo(x: Any = None) -> Any:
        return x

    @skill("test.effect", version="1.0.0", app=app)
    def effect(mark: str) -> str:
        journal(mark)
        return mark

    @skill("test.fail", version="1.0.0", app=app)
    def fail(text: str) -> None:
        raise ValueError(f"cannot use {text}")

    @skill("test.panic", version="1.0.0", app=app)
    def panic(seconds: float = 0.0) -> None:
        time.sleep(seconds)
        raise OwnPanic("unwrap on None")

    @skill("test.exit", version="1.0.0", app=app)
    def leave(code: int = 3) -> None:
        raise SystemExit(code)

    @skill("test.overrun", version="1.0.0", soft_time_limit=1, app=app)
    def overrun(seconds: float = 30.0) -> None:
        time.sleep(seconds)

    @skill("test.swallow", version="1.0.0", soft_time_limit=1, app=app)
    def swallow() -> str:
        try:
            time.sleep(30)
        except SoftTimeLimitExceeded:
            return "partial"
        return "whole"

    @skill("test.nan", version="1.0.0", app=app)
    def nan(mark: str) -> float:
        journal(mark)
        return float("nan")

    @skill("test.a-set", version="1.0.0", app=app)
    def a_set() -> set[int]:
        return {1, 2}

    @skill("test.retry", version="1.0.0", bind=True, max_retries=2, app=app)
    def retry(self: Any, mark: str) -> str:
        if self.request.retries < 2:
            raise self.retry(countdown=0, exc=ValueError("once more"))
        return mark

    @skill(
        "test.autoretry",
        version="1.0.0",
        app=app,
        autoretry_for=(KeyError,),
        retry_backoff=False,
        retry_kwargs={"max_retries": 1, "countdown": 0},
        bind=True,
    )
    def autoretry(self: Any) -> str:
        if self.request.retries == 0:
            raise KeyError("transient")
        return "done"

    @skill(
        "test.autoretry-everything",
        version="1.0.0",
        app=app,
        autoretry_for=(Exception,),
        retry_kwargs={"max_retries": 3, "countdown": 0},
    )
    def autoretry_everything() -> str:
        return "done"

    @skill("test.ignore", version="1.0.0", app=app)
    def ignore() -> None:
        raise Ignore

    @skill("test.reject", version="1.0.0", app=app)
    def reject() -> None:
        raise Reject("not now", requeue=False)

    @skill("test.replace", version="1.0.0", bind=True, app=app)
    def replace(self: Any, x: int) -> int:
        raise self.replace(echo.s(x))

    @skill("test.sleep", version="1.0.0", app=app)
    def sleep(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @skill("test.hold", version="1.0.0", app=app)
    def hold(path: str) -> str:
        """Runs until a file exists."""
        journal(f"holding {path}")
        while not os.path.exists(path):
            time.sleep(0.01)
        return "released"

    @skill("test.wait-at", version="1.0.0", app=app)
    def wait_at(fifo: str, number: int) -> int:
        """Waits, without looking, until somebody opens the pipe for writing."""
        journal(str(number))
        with open(fifo):
            return number

    @skill("test.async", version="1.0.0", app=app)
    async def an_async(x: int) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"x": x, "persona": current_context().caller_persona}

    @skill("test.async-nested", version="1.0.0", app=app)
    async def async_nested(x: int) -> str:
        await asyncio.sleep(0.001)
        return str(echo.delay(x).id)

    @skill("test.async-calls-directly", version="1.0.0", app=app)
    async def async_calls_directly(x: int) -> Any:
        await asyncio.sleep(0.001)
        return echo(x)

    @skill("test.nested", version="1.0.0", app=app)
    def nested(x: int) -> str:
        return str(echo.delay(x).id)

    @skill("test.calls-directly", version="1.0.0", app=app)
    def calls_directly(x: int) -> Any:
        return echo(x)

    @skill("test.calls-itself", version="1.0.0", app=app)
    def calls_itself(depth: int) -> int:
        return 0 if depth == 0 else 1 + calls_itself(depth - 1)

    @skill("test.who", version="1.0.0", app=app)
    def who() -> dict[str, Any]:
        context = current_context()
        return {"persona": context.caller_persona, "tenant": context.tenant_id}

    @skill("test.add", version="1.0.0", app=app)
    def add(x: int, y: int) -> int:
        return x + y

    @skill("test.total", version="1.0.0", app=app)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @skill("test.on-error", version="1.0.0", app=app)
    def on_error(task_id: str) -> str:
        return task_id

    @skill("test.two-argument-errback", version="1.0.0", app=app)
    def two_argument_errback(request: Any, exc: Any) -> None:
        return None

    @skill("test.bound", version="1.0.0", bind=True, app=app)
    def bound(self: Any, x: int) -> str:
        return str(self.request.id)

    @skill("test.own-request-id", version="1.0.0", bind=True, app=app)
    def own_request_id(self: Any) -> str:
        return str(self.request.get(REQUEST_ID_HEADER))

    @skill("test.dies-when-stored", version="1.0.0", app=app)
    def dies_when_stored() -> Deadly:
        return Deadly()

    @skill("test.waits-for", version="1.0.0", app=app)
    def waits_for(name: str) -> str:
        journal(f"waits {name}")
        while not os.path.exists(f"{os.environ['JOURNAL']}.{name}"):
            time.sleep(0.01)
        return name

    @skill("test.die", version="1.0.0", app=app)
    def die(how: str, mark: str = "") -> None:
        """End this process in one of the ways a process can end."""
        journal(f"{mark or how}")
        if how == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "segfault":
            ctypes.string_at(0)
        elif how == "abort":
            os.abort()
        elif how == "exit":
            os._exit(3)

    @skill(
        "test.poison",
        version="1.0.0",
        acks_late=True,
        reject_on_worker_lost=True,
        app=app,
    )
    def poison(mark: str) -> None:
        journal(mark)
        os.kill(os.getpid(), signal.SIGKILL)

    @skill("test.hard-limit", version="1.0.0", time_limit=1, app=app)
    def hard_limit(mark: str) -> None:
        journal(mark)
        while True:
            with contextlib.suppress(Exception):
                time.sleep(30)

    @skill("test.memory-error", version="1.0.0", app=app)
    def memory_error() -> None:
        raise MemoryError("no more")

    @skill("test.busy", version="1.0.0", app=app)
    def busy(mark: str) -> None:
        journal(mark)
        time.sleep(60)

    @skill("test.busy-late", version="1.0.0", acks_late=True, app=app)
    def busy_late(mark: str) -> None:
        journal(mark)
        time.sleep(60)

    @skill("test.tick", version="1.0.0", retry_when_refused=True, app=app)
    def tick(mark: str) -> str:
        journal(mark)
        return mark

    @skill("test.calls-die", version="1.0.0", app=app)
    def calls_die(how: str) -> None:
        """Its body calls a skill directly, and the process dies in there."""
        die(how)

    @skill(
        "test.async-autoretry",
        version="1.0.0",
        bind=True,
        autoretry_for=(KeyError,),
        retry_kwargs={"max_retries": 1, "countdown": 0},
        app=app,
    )
    async def async_autoretry(self: Any) -> str:
        await asyncio.sleep(0)
        if self.request.retries == 0:
            raise KeyError("transient")
        return "done"

    @skill("test.clocked-panic", version="1.0.0", app=app)
    def clocked_panic(seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        journal(f"clocked {(time.monotonic() - began) * 1000}")
        raise OwnPanic("now")

    @skill("test.private", version="1.0.0", ignore_result=True, app=app)
    def private(mark: str) -> dict[str, str]:
        journal(mark)
        return {"mark": mark}

    @skill("test.excluded", version="1.0.0", body_excluded=True, app=app)
    def excluded(x: str, fails: bool = False) -> str:
        if fails:
            raise ValueError(f"cannot use {x}") from KeyError(x)
        return x

    @skill("test.forgetful", version="1.0.0", base=ForgetfulTask, app=app)
    def forgetful(mark: str) -> None:
        journal(mark)

    @skill("test.swallows-refusal", version="1.0.0", base=SwallowingTask, app=app)
    def swallows_refusal(mark: str) -> None:
        journal(mark)

    @skill("test.length", version="1.0.0", app=app)
    def length(text: str) -> int:
        return len(text)

    @app.task(name="test.plain", shared=False)  # type: ignore[untyped-decorator]
    def plain(x: int) -> int:
        return x

    @app.task(name="test.plain-publishes", shared=False)  # type: ignore[untyped-decorator]
    def plain_publishes(x: int) -> str:
        return str(echo.delay(x).id)

    publishers = vars(declare_publishers(app, echo, add))
    own = {k: v for k, v in locals().items() if k not in ("app", "publishers")}
    return SimpleNamespace(**own, **publishers)
