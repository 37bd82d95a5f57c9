"""The skills of the canary: each gives its arguments away in one way, as badly as a body can.

Every body takes the number of its path, then secrets. What the path is called stands in the
caller; a number below a thousand is nothing that anything masks.
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from urllib.parse import quote as quote_of_url

from celery import Celery
from celery.exceptions import Ignore, Reject
from opentelemetry import trace

from tasks import SkillTask
from tasks.host import skill
from tests.integration.canary.secrets import Mint

#: How a body may quote what it was given.
QUOTES: Mapping[str, Callable[[Any], str]] = {
    "raw": str,
    "repr": repr,
    "json": lambda leaf: json.dumps(str(leaf)),
    "json-twice": lambda leaf: json.dumps(json.dumps({"input": str(leaf)})),
    "short": lambda leaf: f"{str(leaf)[:12]}...",
    "url": lambda leaf: quote_of_url(str(leaf), safe=""),
    "html": lambda leaf: html.escape(str(leaf)),
}

logger = logging.getLogger(__name__)


class AwkwardError(Exception):
    """Pickles, and cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text, self.code = text, code


class OwnPanic(BaseException):
    """A panic of a library's own."""


class TellingPanic(BaseException):
    """Prints what it was given, whatever becomes of its arguments."""

    def __init__(self, detail: str) -> None:
        super().__init__("a panic")
        self.detail = detail

    def __str__(self) -> str:
        return self.detail

    __repr__ = __str__


def leaves(value: Any) -> Iterator[Any]:
    """Every leaf of nested arguments, dict keys included; no number of a path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    elif not isinstance(value, int) or value > 1000:
        yield value


def quoted(quote: str, *values: Any) -> str:
    return "cannot use " + " and ".join(QUOTES[quote](leaf) for leaf in leaves(values))


def declare(app: Celery) -> SimpleNamespace:
    """Declare the canary's skills in ``app``; they come back by name."""
    mint = Mint(os.environ["CANARY_SEED"])
    found: dict[str, Any] = {}

    # Made here and not above: what a class gets depends on what is switched off by now.
    class OwnHookTask(SkillTask):
        """Its hook forgets super()."""

        abstract = True

        def on_failure(self, *_: Any) -> None:
            logger.info("the hook saw a failure")

    class BadHookTask(SkillTask):
        """Its hook forgets super(), and quotes the arguments in an error of its own."""

        abstract = True

        def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
            raise RuntimeError(f"the hook choked on {args} and {kwargs}")

    class TellingHooksTask(SkillTask):
        """Its hooks quote what the body returned."""

        abstract = True

        def on_success(self, retval: Any, *_: Any) -> None:
            raise RuntimeError(f"stumbled over {retval}")

        def after_return(self, status: Any, retval: Any, *rest: Any) -> None:
            super().after_return(status, retval, *rest)
            raise RuntimeError(f"stumbled again over {retval}")

    def canary(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def register(body: Callable[..., Any]) -> Any:
            declare_in = skill(f"canary.{name}", version="1.0.0", app=app, **options)
            return found.setdefault(name.replace("-", "_"), declare_in(body))

        return register

    @canary("echo")
    def echo(path: int, first: Any, nested: Any = None, **more: Any) -> Any:
        return mint.result(path)

    @canary("step")
    def step(previous: Any, path: int, first: Any, nested: Any = None, **more: Any) -> Any:
        return mint.result(path)

    @canary("step-fails")
    def step_fails(previous: Any, path: int, *values: Any, **more: Any) -> NoReturn:
        raise ValueError(quoted("raw", previous, values, more))

    @canary("on-error")
    def on_error(task_id: str) -> str:
        return task_id

    @canary("one")
    def one(item: Any) -> Any:
        return item

    @canary("async")
    async def an_async(path: int, *values: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        return mint.result(path)

    @canary("nested")
    def nested(path: int, *values: Any, **more: Any) -> Any:
        return str(echo.delay(path, *values, **more).id)

    @canary("replace", bind=True)
    def replace(self: Any, path: int, *values: Any, **more: Any) -> Any:
        raise self.replace(echo.si(path, *values, **more))

    @canary("nan")
    def nan(path: int, *values: Any, **more: Any) -> Any:
        return {**mint.result(path), "nan": float("nan")}

    @canary("ignore")
    def ignore(path: int, *values: Any, **more: Any) -> None:
        raise Ignore(quoted("raw", values, more))

    @canary("reject", acks_late=True)
    def reject(path: int, *values: Any, **more: Any) -> None:
        raise Reject(quoted("raw", values, more), requeue=False)

    @canary("retry", bind=True)
    def retry(self: Any, path: int, *values: Any, **more: Any) -> None:
        raise self.retry(exc=ValueError(quoted("repr", values, more)), countdown=0, max_retries=1)

    @canary("retries-exceeded", bind=True)
    def retries_exceeded(self: Any, path: int, *values: Any, **more: Any) -> None:
        raise self.retry(countdown=0, max_retries=1)

    @canary("retries-exceeded-with-others", bind=True)
    def retries_exceeded_with_others(self: Any, path: int, *values: Any, **more: Any) -> None:
        raise self.retry(args=(path, mint.result(path)), countdown=0, max_retries=0)

    @canary("telling-hooks", base=TellingHooksTask)
    def telling_hooks(path: int, *values: Any, **more: Any) -> Any:
        return mint.result(path)

    @canary("takes-out")
    def takes_out(path: int, first: Any, nested: dict[Any, Any], **more: Any) -> NoReturn:
        """What it takes out of its arguments is not in them any more."""
        taken = [*nested.pop("list"), *nested.keys()]
        nested.clear()
        logger.warning("took out %s", taken)
        raise ValueError(f"took out {taken}")

    @canary("takes-out-of-a-result")
    def takes_out_of_a_result(path: int, *values: Any, **more: Any) -> NoReturn:
        result = echo(path, *values, **more)
        taken = result.pop("whole")
        raise ValueError(f"took out {taken}")

    @canary("quotes-what-it-called")
    def quotes_what_it_called(path: int, *values: Any, **more: Any) -> NoReturn:
        raise ValueError(f"got {echo(path, *values, **more)}")

    @canary("autoretry", autoretry_for=(KeyError,), retry_kwargs={"max_retries": 1, "countdown": 0})
    def autoretry(path: int, *values: Any, **more: Any) -> None:
        raise KeyError(quoted("raw", values, more))

    @canary("soft-limit", soft_time_limit=1)
    def soft_limit(path: int, *values: Any, **more: Any) -> None:
        time.sleep(30)

    @canary("hard-limit", time_limit=1)
    def hard_limit(path: int, *values: Any, **more: Any) -> None:
        time.sleep(30)

    @canary("killed")
    def killed(path: int, *values: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @canary("exit")
    def leave(path: int, *values: Any, **more: Any) -> None:
        raise SystemExit(quoted("raw", values, more))

    @canary("panic")
    def panic(path: int, *values: Any, **more: Any) -> NoReturn:
        raise OwnPanic(quoted("raw", values, more))

    @canary("telling-panic")
    def telling_panic(path: int, *values: Any, **more: Any) -> NoReturn:
        raise TellingPanic(quoted("raw", values, more))

    @canary("hold")
    def hold(path: int, *values: Any, **more: Any) -> Any:
        """Runs until the test lets it go."""
        directory = Path(os.environ["CANARY_RELEASE"])
        (directory / f"held-{path}").touch()
        while not (directory / "release").exists():
            time.sleep(0.01)
        return mint.result(path)

    @canary("logs")
    def logs(path: int, *values: Any, **more: Any) -> Any:
        logger.info("working on %s and %s", values, more)
        logger.info("working on %(keyword)s", more)
        logger.warning(quoted("json", values, more), extra={"data": more})
        try:
            raise ValueError(quoted("repr", values, more))
        except ValueError:
            logger.exception("did not work: %r", values)
        return mint.result(path)

    @canary("span")
    def span(path: int, *values: Any, **more: Any) -> NoReturn:
        with trace.get_tracer("body").start_as_current_span("own"):
            raise ValueError(quoted("raw", values, more))

    @canary("chained")
    def chained(path: int, *values: Any, **more: Any) -> NoReturn:
        try:
            raise KeyError(quoted("repr", values, more))
        except KeyError as error:
            raise ValueError(quoted("raw", values, more)) from error

    @canary("several")
    def several(path: int, *values: Any, **more: Any) -> NoReturn:
        errors = [ValueError(quoted(quote, values, more)) for quote in ("raw", "json")]
        raise ExceptionGroup(quoted("short", values, more), errors)

    @canary("awkward")
    def awkward(path: int, *values: Any, **more: Any) -> NoReturn:
        raise AwkwardError(quoted("raw", values, more), 3)

    @canary("bad-hook", base=BadHookTask)
    def bad_hook(path: int, *values: Any, **more: Any) -> NoReturn:
        raise ValueError(quoted("raw", values, more))

    for name, base in (("strict", SkillTask), ("bad-hook-strict", BadHookTask)):

        @canary(name, base=base)
        def strict(path: int, first: Any) -> None:
            """Never runs: the arguments do not fit."""

    @canary("own-hook", base=OwnHookTask)
    def own_hook(path: int, *values: Any, **more: Any) -> NoReturn:
        raise ValueError(quoted("raw", values, more))

    @canary("killed-after-success", acks_late=True)
    def killed_after_success(path: int, *values: Any, **more: Any) -> Any:
        """The app's receiver of ``task_success`` kills the process."""
        return mint.result(path)

    @canary("excluded", body_excluded=True)
    def excluded(path: int, *values: Any, **more: Any) -> Any:
        return mint.result(path)

    @canary("excluded-fails", body_excluded=True)
    def excluded_fails(path: int, *values: Any, **more: Any) -> NoReturn:
        raise ValueError(quoted("raw", values, more))

    for quote in QUOTES:

        @canary(f"fail-{quote}")
        def fail(path: int, *values: Any, quote: str = quote, **more: Any) -> NoReturn:
            raise ValueError(quoted(quote, values, more))

    return SimpleNamespace(**found)
