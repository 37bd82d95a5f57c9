"""Leads through the demo: makes the calls, shows the rows they leave, and adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

import click

from audit.memory import AuditMemory
from audit.row import AuditRow
from demo import show
from demo.journal import ROW_SECONDS, Journal
from demo.skills import SCHEDULER
from demo.stack import Stack
from demo.story import NESTED, TENANTS, Call, Chapter, chapters, slow_chapter
from demo.waiting import DemoError, wait_until
from tasks.skills import payroll_draft

INTRODUCTION: Final = """
Each line is one row of the audit memory, in the order in which they were stored. A `started` row is
on disk before the skill's body runs, a `completed` one before the caller can see the result.
"""
NOT_KEPT: Final = "nothing: its result is kept nowhere (ignore_result=True)"


class Tour:
    """One way through the demo.

    Args:
        stack: what is up.
        memory: the audit memory behind it.
    """

    def __init__(self, stack: Stack, memory: AuditMemory) -> None:
        self._stack = stack
        self._memory = memory
        self._began = show.now()
        self._journal = Journal(memory, TENANTS, check=stack.check, missing=self._missing)
        self._calls: list[Call] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Give up the results. One that is left would look for its backend when that is gone."""
        with suppress(Exception):  # the backend may be gone already, and there is nothing to gain
            for call in self._calls:
                call.result.forget()

    def lead(self) -> None:
        """Go through every chapter.

        Raises:
            DemoError: a row or a result is missing.
        """
        click.echo(f"{INTRODUCTION}\n{show.ROW_TITLES}")
        for chapter in chapters(self._stack.endpoints):
            self._show_received(self._perform(chapter))
        self._show_nested()
        self._show_running()
        self._show_stored()

    def sum_up(self) -> None:
        """Print what was started how often and how it ended, read anew from the memory.

        Raises:
            DemoError: something was started and is not completed.
        """
        counts = wait_until(
            self._balanced,
            seconds=ROW_SECONDS,
            check=self._stack.check,
            failure=lambda: self._missing("every started row to have its completed one"),
        )
        click.echo(show.title("All of it, read anew from the memory"))
        click.echo("\n".join(show.summary(counts)))

    def request_id_of(self, skill_id: str) -> str:
        """The first invocation of a skill that the tour saw."""
        return next(
            row.request_id for row in self._journal.rows if row.payload["skill_id"] == skill_id
        )

    # --- chapters -----------------------------------------------------------------------------

    def _perform(self, chapter: Chapter) -> list[Call]:
        """Make the calls of a chapter and wait for both rows of each."""
        calls = self._begin(chapter)
        self._read_until_closed(calls)
        return calls

    def _begin(self, chapter: Chapter) -> list[Call]:
        click.echo(show.title(chapter.title, f"(tenant {chapter.caller.tenant_id})"))
        calls = chapter.begin()
        self._calls += calls
        return calls

    def _read_until_closed(self, calls: Sequence[Call]) -> None:
        self._journal.read_until(
            lambda: all(self._journal.is_closed(call.task_id) for call in calls),
            f"the rows of {', '.join(call.skill_id for call in calls)}",
        )

    def _show_received(self, calls: Sequence[Call]) -> None:
        click.echo("  What the callers got:")
        for call in calls:
            click.echo(show.received(call.skill_id, self._received(call)))

    def _received(self, call: Call) -> str:
        if not call.keeps_result:
            return NOT_KEPT
        wait_until(
            call.result.ready,
            seconds=ROW_SECONDS,
            check=self._stack.check,
            failure=lambda: self._missing(f"the result of {call.skill_id}"),
        )
        return repr(call.result.result)

    def _show_nested(self) -> None:
        (call,) = self._perform(NESTED)
        parent = self._journal.of_task(call.task_id)[0].request_id
        self._journal.read_until(
            lambda: len(self._journal.published_by(parent)) == 2, "the rows of the inner call"
        )
        child = self._journal.published_by(parent)[0]
        click.echo(
            f"  {child.request_id} names {parent} as its parent,"
            f" both are in the trace\n  {child.payload['trace_id']}."
        )

    def _show_running(self) -> None:
        release = self._stack.directory / "release"
        try:
            (call,) = calls = self._begin(slow_chapter(release))
            self._journal.read_until(lambda: self._journal.of_task(call.task_id), "demo.slow")
            seen = len(self._journal.closed_for(SCHEDULER.caller_persona))
            self._journal.read_until(
                lambda: len(self._journal.closed_for(SCHEDULER.caller_persona)) > seen,
                "the rows of a scheduled call",
            )
            click.echo("  Running now, says the memory:")
            click.echo("\n".join(show.running(self._running(), show.now())))
        finally:
            release.touch()
        self._read_until_closed(calls)

    def _show_stored(self) -> None:
        """Both rows of a payroll, to the byte."""
        click.echo(show.title("What the audit keeps of a payroll: hashes, and none of its amounts"))
        for stored in self._memory.rows(request_id=self.request_id_of(payroll_draft.name)):
            click.echo(f"  {stored.to_bytes().decode()}")

    # --- asking -------------------------------------------------------------------------------

    def _running(self) -> list[AuditRow]:
        return [row for row in self._memory.running() if row.tenant_id in TENANTS]

    def _balanced(self) -> show.Counts | None:
        """The counts, once nothing is open; beat goes on, so that may take another look."""
        rows = self._memory.rows(since=self._began)
        counts = show.count(row for row in rows if row.tenant_id in TENANTS)
        return None if any(skill[show.OPEN] for skill in counts.values()) else counts

    def _missing(self, what: str) -> DemoError:
        return self._stack.worker.failure(f"waited {ROW_SECONDS:g} s in vain for {what}")
