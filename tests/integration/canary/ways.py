"""Every way to publish and every ending, each with how many rows it leaves in the end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import chain, chord, group

from tests.integration.canary.skills import QUOTES


@dataclass(frozen=True)
class Way:
    """One way to publish.

    Attributes:
        publish: does it, and gives the result where there is one.
        rows: how many closing rows (completed or refused) come of it.
    """

    publish: Callable[[Any], Any]
    rows: int = 1


def run(name: str, **options: Any) -> Callable[[Any], Any]:
    """Publish one skill, by ``apply_async`` with options."""

    def publish(c: Any) -> Any:
        args, kwargs = c.pay()
        return getattr(c.skills, name).apply_async(args, kwargs, **options)

    return publish


def signature(c: Any, name: str, part: str) -> Any:
    args, kwargs = c.pay(part)
    return getattr(c.skills, name).s(*args, **kwargs)


def delay(c: Any) -> Any:
    args, kwargs = c.pay()
    return c.skills.echo.delay(*args, **kwargs)


def send_task(c: Any) -> Any:
    return c.app.send_task("canary.echo", *c.pay())


def send_task_unknown_here(c: Any) -> Any:
    return c.ignorant.send_task("canary.echo", *c.pay())


def foreign(name: str, **more: Any) -> Callable[[Any], Any]:
    """Publish from plain Celery, which writes the raw reprs and knows no caller."""

    def publish(c: Any) -> Any:
        args, kwargs = c.pay()
        reprs = {"argsrepr": repr(args), "kwargsrepr": repr(kwargs)}
        options = {"headers": c.headers, **reprs, **more}
        return c.plain.send_task(name, args, kwargs, **options)

    return publish


def own_reprs(c: Any) -> Any:
    args, kwargs = c.pay()
    reprs = {"argsrepr": repr(args), "kwargsrepr": repr(kwargs)}
    return c.skills.echo.apply_async(args, kwargs, **reprs)


def chain_of_five(c: Any) -> Any:
    links = [signature(c, "step", f"link {n}") for n in range(2, 6)]
    return chain(signature(c, "echo", "link 1"), *links).apply_async()


def chain_that_breaks(c: Any) -> Any:
    links = [signature(c, name, name) for name in ("echo", "step_fails", "step")]
    return chain(*links).apply_async()


def nested_group(c: Any) -> Any:
    one, two, three = (signature(c, "echo", str(n)) for n in range(3))
    return group(one, group(two, three)).apply_async()


def chord_whole(c: Any) -> Any:
    header = [signature(c, "echo", f"header {n}") for n in range(2)]
    return chord(header, signature(c, "step", "body")).apply_async()


def chord_whose_header_fails(c: Any) -> Any:
    # The last one to end is told of the error of the other.
    last = signature(c, "echo", "header 2").set(countdown=0.5)
    header = [signature(c, "fail_raw", "header 1"), last]
    body = signature(c, "step", "body").on_error(c.skills.on_error.s())
    return chord(header, body).apply_async()


def link(c: Any) -> Any:
    args, kwargs = c.pay()
    links = [c.skills.one.s(), signature(c, "step", "link")]
    return c.skills.echo.apply_async(args, kwargs, link=links)


def link_error(c: Any) -> Any:
    args, kwargs = c.pay()
    errbacks = [c.skills.on_error.s()]
    return c.skills.fail_raw.apply_async(args, kwargs, link_error=errbacks)


def mapped(c: Any) -> Any:
    return c.skills.one.map([c.pay("1"), c.pay("2")]).apply_async()


def starmapped(c: Any) -> Any:
    return c.skills.echo.starmap([c.pay("1")[0], c.pay("2")[0]]).apply_async()


def starmapped_failing(c: Any) -> Any:
    return c.skills.fail_raw.starmap([c.pay()[0]]).apply_async()


def chunks(c: Any) -> Any:
    return c.skills.echo.chunks([c.pay("1")[0], c.pay("2")[0]], 1).apply_async()


def here(name: str, call: str = "__call__") -> Callable[[Any], Any]:
    """Run a skill in the caller's process."""

    def publish(c: Any) -> None:
        args, kwargs = c.pay()
        task = getattr(c.skills, name)
        with contextlib.suppress(Exception):
            task(*args, **kwargs) if call == "__call__" else task.apply(args, kwargs)

    return publish


def raw(body: Callable[[Any, Any], Any], **headers: Any) -> Callable[[Any], Any]:
    """Put a message as it is into the queue."""

    def publish(c: Any) -> None:
        given = {"lang": "py", "task": "canary.echo", "id": c.new_id(), **c.headers, **headers}
        with c.plain.producer_or_acquire() as producer:
            producer.publish(
                body(*c.pay()).encode(),
                content_type="application/json",
                content_encoding="utf-8",
                routing_key="skills",
                headers={k: v for k, v in given.items() if v is not None},
            )

    return publish


def text(args: Any, kwargs: Any) -> str:
    return json.dumps([args[1:], kwargs["keyword"], kwargs["odd"], kwargs["number"]])


#: Ways that are over by themselves.
CALM: dict[str, Way] = {
    "delay": Way(delay),
    "apply_async": Way(run("echo", countdown=0.01, headers={"mine": "kept"})),
    "send_task": Way(send_task),
    "send_task, skill unknown here": Way(send_task_unknown_here),
    "plain Celery": Way(foreign("canary.echo")),
    "plain Celery, failing": Way(foreign("canary.fail-raw")),
    "own argsrepr": Way(own_reprs),
    "chain": Way(chain_of_five, 5),
    "chain that breaks": Way(chain_that_breaks, 2),
    "group": Way(nested_group, 3),
    "chord": Way(chord_whole, 3),
    "chord, failing": Way(chord_whose_header_fails, 3),
    "link": Way(link, 3),
    "link_error": Way(link_error, 2),
    "replace": Way(run("replace"), 2),
    "map": Way(mapped, 2),
    "starmap": Way(starmapped, 2),
    "chunks": Way(chunks, 2),
    "starmap, failing": Way(starmapped_failing),
    "nested": Way(run("nested"), 2),
    "async": Way(run("async")),
    "direct": Way(here("echo")),
    "direct, failing": Way(here("fail_raw")),
    "eager": Way(here("echo", "apply")),
    "eager, failing": Way(here("fail_raw", "apply")),
    "eager, logs": Way(here("logs", "apply")),
    "unknown skill": Way(foreign("canary.unknown"), 0),
    "bad arguments": Way(foreign("canary.strict")),
    "no context": Way(foreign("canary.echo", headers={})),
    "undecodable": Way(raw(lambda args, kwargs: text(args, kwargs)[:-2]), 0),
    "no body of a task": Way(raw(lambda *p: json.dumps({"x": text(*p)})), 0),
    "no task": Way(raw(text, task=None), 0),
    "unusable header": Way(raw(lambda *p: json.dumps([[text(*p)], {}, {}]), stamps=3), 0),
    "retry": Way(run("retry"), 2),
    "retries exceeded": Way(run("retries_exceeded"), 2),
    "retries exceeded with other arguments": Way(run("retries_exceeded_with_others")),
    "telling hooks": Way(run("telling_hooks")),
    "takes out of its arguments": Way(run("takes_out")),
    "takes out of a result": Way(run("takes_out_of_a_result"), 2),
    "quotes what it called": Way(run("quotes_what_it_called"), 2),
    "autoretry": Way(run("autoretry"), 2),
    "reject": Way(run("reject")),
    "ignore": Way(run("ignore")),
    "NaN": Way(run("nan")),
    "logs": Way(run("logs")),
    "span": Way(run("span")),
    "chained": Way(run("chained")),
    "exception group": Way(run("several")),
    "awkward": Way(run("awkward")),
    "bad hook": Way(run("bad_hook")),
    "bad hook, not run": Way(foreign("canary.bad-hook-strict")),
    "own hook": Way(run("own_hook")),
    "killed after success": Way(run("killed_after_success")),
    "body excluded": Way(run("excluded")),
    "body excluded, failing": Way(run("excluded_fails")),
    "panic": Way(run("panic")),
    "telling panic": Way(run("telling_panic")),
    "exit": Way(run("exit")),
    "soft limit": Way(run("soft_limit")),
    "hard limit": Way(run("hard_limit")),
    "killed": Way(run("killed")),
    **{f"fails, {quote}": Way(run(f"fail_{quote}".replace("-", "_"))) for quote in QUOTES},
}

#: Those whose bodies neither end their process nor must be ended.
IN_THREADS = {
    name: way
    for name, way in CALM.items()
    if name
    not in (
        "panic",
        "telling panic",
        "exit",
        "soft limit",
        "hard limit",
        "killed",
        "killed after success",
    )
}

#: Ways that wait for somebody: two that run, two in the queue, two for later.
HELD: dict[str, Way] = {
    "terminated": Way(run("hold")),
    "spooled": Way(run("hold"), 0),
    "reserved": Way(run("echo")),
    "reserved, plain Celery": Way(foreign("canary.echo")),
    "scheduled": Way(run("echo", countdown=3600), 0),
    "scheduled, plain Celery": Way(foreign("canary.echo", countdown=3600), 0),
}

WAYS = CALM | HELD
