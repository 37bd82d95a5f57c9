"""Every way to publish, and who must stand behind whom in the rows that come of it.

``docs/publish-paths.md`` lists the same ways; ``tests/unit/test_publish_paths_page.py`` holds that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import chain, chord, group

from audit import current_context
from audit.context import Trace
from tests.integration.stack import ROOT, Stack


@dataclass(frozen=True)
class Way:
    """One way to publish.

    Attributes:
        publish: publishes on it.
        family: what comes of it: a line ``skill<parent`` for each invocation, the parent ``-``
            where a caller published it; ``3*`` before it stands for three alike.
    """

    publish: Callable[[Stack], Any]
    family: str

    @property
    def name(self) -> str:
        return self.publish.__name__.removeprefix("publish_")

    @property
    def invocations(self) -> Counter[tuple[str, str]]:
        """How often each skill runs below each parent."""
        found: Counter[tuple[str, str]] = Counter()
        for entry in self.family.split():
            times, _, pair = entry.rpartition("*")
            skill_id, parent = pair.split("<")
            found[skill_id, parent] += int(times or 1)
        return found


def publish_delay(stack: Stack) -> Any:
    return stack.skills.echo.delay(1)


def publish_apply_async(stack: Stack) -> Any:
    return stack.skills.echo.apply_async((1,), headers={"mine": "kept"})


def publish_countdown(stack: Stack) -> Any:
    return stack.skills.echo.apply_async((1,), countdown=0.01)


def publish_send_task(stack: Stack) -> Any:
    return stack.app.send_task("test.echo", (1,))


def publish_send_task_from_a_process(stack: Stack) -> Any:
    return publish_in_a_process(stack, "send_task")


def publish_chain_from_a_process(stack: Stack) -> Any:
    return publish_in_a_process(stack, "chain")


def publish_signature(stack: Stack) -> Any:
    return stack.app.signature("test.echo", args=(1,)).apply_async()


def publish_immutable_signature(stack: Stack) -> Any:
    echo = stack.skills.echo
    return chain(echo.si(1), echo.si(2), echo.si(3)).apply_async()


def publish_retry(stack: Stack) -> Any:
    return stack.skills.retry.delay("m")


def publish_retry_with_changed_arguments(stack: Stack) -> Any:
    return stack.skills.retry_changed.delay(2)


def publish_autoretry(stack: Stack) -> Any:
    return stack.skills.autoretry.delay()


def publish_chain(stack: Stack) -> Any:
    add = stack.skills.add
    return chain(add.s(1, 1), add.s(1), add.s(1), add.s(1), add.s(1)).apply_async()


def publish_group(stack: Stack) -> Any:
    echo = stack.skills.echo
    return group(echo.s(1), echo.s(2)).apply_async()


def publish_nested_groups(stack: Stack) -> Any:
    echo = stack.skills.echo
    inner = group(echo.s(3), group(echo.s(4), echo.s(5)))
    return group(echo.s(1), echo.s(2), inner).apply_async()


def publish_group_in_chain(stack: Stack) -> Any:
    echo = stack.skills.echo
    return chain(echo.s(1), group(echo.s(), group(echo.s(), echo.s()))).apply_async()


def publish_chord(stack: Stack) -> Any:
    echo = stack.skills.echo
    return chord([echo.s(1), echo.s(2), echo.s(3)], stack.skills.total.s()).apply_async()


def publish_chord_in_chain(stack: Stack) -> Any:
    echo, total = stack.skills.echo, stack.skills.total
    return chain(echo.s(1), group(echo.s(), echo.s()), total.s()).apply_async()


def publish_chord_body_in_chain(stack: Stack) -> Any:
    echo, total = stack.skills.echo, stack.skills.total
    inner = chord([echo.si(1), echo.si(2)], total.s())
    return chain(stack.skills.add.s(1, 1), inner, stack.skills.bound.s()).apply_async()


def publish_chord_with_failing_header(stack: Stack) -> Any:
    fail, on_error = stack.skills.fail, stack.skills.on_error
    body = stack.skills.total.s().on_error(on_error.s())
    return chord([fail.s("x"), fail.s("y")], body).apply_async()


def publish_chord_with_failing_body(stack: Stack) -> Any:
    body = stack.skills.fail.s().on_error(stack.skills.on_error.s())
    return chord([stack.skills.echo.s(1), stack.skills.echo.s(2)], body).apply_async()


def publish_link(stack: Stack) -> Any:
    echo = stack.skills.echo
    return stack.skills.add.apply_async((1, 1), link=[echo.s(), echo.si(2)])


def publish_link_error(stack: Stack) -> Any:
    return stack.skills.fail.apply_async(("x",), link_error=stack.skills.on_error.s())


def publish_link_error_on_a_chain(stack: Stack) -> Any:
    steps = chain(stack.skills.echo.s("x"), stack.skills.fail.s(), stack.skills.echo.s())
    return steps.apply_async(link_error=stack.skills.on_error.s())


def publish_replace(stack: Stack) -> Any:
    return stack.skills.replace.delay(3)


def publish_replace_with_a_chain(stack: Stack) -> Any:
    return stack.skills.replace_with_chain.apply_async((3,), link=stack.skills.bound.s())


def publish_replace_with_a_group(stack: Stack) -> Any:
    return stack.skills.replace_with_group.delay(3)


def publish_nested(stack: Stack) -> Any:
    return stack.skills.nested.delay(3)


def publish_nested_in_async(stack: Stack) -> Any:
    return stack.skills.async_nested.delay(3)


def publish_nested_in_thread(stack: Stack) -> Any:
    return stack.skills.nested_in_thread.delay(3)


def publish_direct_call(stack: Stack) -> Any:
    return stack.skills.calls_directly.delay(3)


def publish_by_a_plain_task(stack: Stack) -> Any:
    return stack.skills.plain_publishes.delay(3)


def publish_map(stack: Stack) -> Any:
    return stack.skills.echo.map([1, 2]).apply_async()


def publish_starmap(stack: Stack) -> Any:
    return stack.skills.add.starmap([(1, 2), (3, 4)]).apply_async()


def publish_chunks(stack: Stack) -> Any:
    return stack.skills.add.chunks([(i, i) for i in range(4)], 2).apply_async()


WAYS: tuple[Way, ...] = (
    Way(publish_delay, "echo<-"),
    Way(publish_apply_async, "echo<-"),
    Way(publish_countdown, "echo<-"),
    Way(publish_send_task, "echo<-"),
    Way(publish_send_task_from_a_process, "echo<-"),
    Way(publish_chain_from_a_process, "echo<- 2*echo<echo"),
    Way(publish_signature, "echo<-"),
    Way(publish_immutable_signature, "echo<- 2*echo<echo"),
    Way(publish_retry, "retry<- 2*retry<retry"),
    Way(publish_retry_with_changed_arguments, "retry-changed<- 2*retry-changed<retry-changed"),
    Way(publish_autoretry, "autoretry<- autoretry<autoretry"),
    Way(publish_chain, "add<- 4*add<add"),
    Way(publish_group, "2*echo<-"),
    Way(publish_nested_groups, "5*echo<-"),
    Way(publish_group_in_chain, "echo<- 3*echo<echo"),
    Way(publish_chord, "3*echo<- total<echo"),
    Way(publish_chord_in_chain, "echo<- 2*echo<echo total<echo"),
    Way(publish_chord_body_in_chain, "add<- 2*echo<add total<echo bound<total"),
    Way(publish_chord_with_failing_header, "2*fail<- on-error<fail"),
    Way(publish_chord_with_failing_body, "2*echo<- fail<echo on-error<fail"),
    Way(publish_link, "add<- 2*echo<add"),
    Way(publish_link_error, "fail<- on-error<fail"),
    Way(publish_link_error_on_a_chain, "echo<- fail<echo on-error<fail"),
    Way(publish_replace, "replace<- echo<replace"),
    Way(
        publish_replace_with_a_chain,
        "replace-with-chain<- add<replace-with-chain echo<add bound<echo",
    ),
    Way(publish_replace_with_a_group, "replace-with-group<- 2*echo<replace-with-group"),
    Way(publish_nested, "nested<- echo<nested"),
    Way(publish_nested_in_async, "async-nested<- echo<async-nested"),
    Way(publish_nested_in_thread, "nested-in-thread<- echo<nested-in-thread"),
    Way(publish_direct_call, "calls-directly<- echo<calls-directly"),
    Way(publish_by_a_plain_task, "echo<-"),
    Way(publish_map, "2*echo<-"),
    Way(publish_starmap, "2*add<-"),
    Way(publish_chunks, "4*add<-"),
)


def publish_in_a_process(stack: Stack, how: str) -> str:
    """Publish from a process of its own, which knows no skill; the task id it reports."""
    context, place = current_context(), Trace.current()
    assert place is not None
    told = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.integration.ignorant",
            how,
            context.caller_persona,
            context.tenant_id,
            place.header(),
        ],
        cwd=ROOT,
        env={**os.environ, **stack.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return told.stdout.strip()
