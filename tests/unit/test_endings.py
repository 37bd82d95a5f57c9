"""tasks/endings.py, and tasks/task.py around it: what leaves a body, and signals at any line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from audit import alarms, invocation, recorder
from audit.context import InvocationContext, acting_as, find_context
from audit.row import COMPLETED, STARTED, Outcome, Reason
from tasks import SkillHost, runtime, task
from tasks.endings import REASONS, SoftLimitWatch, ending_of
from tests.fakes import FakeMemory, Strike
from tests.support import TENANT


class OwnPanicError(BaseException):
    """A panic of a library's own, as PyO3's PanicException is."""


class OwnSoftLimitError(SoftTimeLimitExceeded):
    """Derived from Celery's."""


class OwnMemoryError(MemoryError):
    """Derived from Python's, as numpy's _ArrayMemoryError is."""


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (ValueError("no"), "error", "raised"),
        (TimeoutError("slow"), "error", "raised"),
        (StopIteration(), "error", "raised"),
        (RecursionError("deep"), "error", "raised"),
        (SoftTimeLimitExceeded(), "timeout", "soft_time_limit"),
        (OwnSoftLimitError(), "timeout", "soft_time_limit"),
        (Retry("again", ValueError("no")), "error", "retried"),
        (Reject("not now"), "error", "rejected"),
        (Ignore(), "success", "ignored"),
        (MemoryError(), "panic", "base_exception"),
        (OwnMemoryError(), "panic", "base_exception"),
        (OwnPanicError("unwrap on None"), "panic", "base_exception"),
        (SystemExit(3), "panic", "base_exception"),
        (KeyboardInterrupt(), "panic", "base_exception"),
        (GeneratorExit(), "panic", "base_exception"),
        (asyncio.CancelledError(), "panic", "base_exception"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_leaves_the_body_decides_the_ending(
    error: BaseException, outcome: str, reason: str
) -> None:
    """Each error has one ending in the table; only ``ignored`` has no message, none has a hash."""
    ending = ending_of(error, ())
    assert (ending.outcome.value, ending.reason.value, ending.result_hash) == (outcome, reason, "")
    assert (ending.error_message is None) == (reason == "ignored")
    assert ending.error_message is None or type(error).__name__ in ending.error_message


def test_the_first_match_decides() -> None:
    """No line of the table is dead: none stands behind one that takes its errors already."""
    for number, (kind, _) in enumerate(REASONS):
        assert not any(issubclass(kind, before) for before, _ in REASONS[:number])
    assert REASONS[-1][0] is BaseException


def test_the_caller_may_know_the_reason_better() -> None:
    """A result without canonical form is a ValueError by type, and has a reason of its own."""
    ending = ending_of(ValueError("no form"), (), reason=Reason.UNCANONICAL_RESULT)
    assert (ending.outcome, ending.reason) == (Outcome.ERROR, Reason.UNCANONICAL_RESULT)


def test_the_message_is_masked_or_the_type_alone() -> None:
    """An argument's value never stands in the message, whatever the setting."""
    error = ValueError("cannot use customer-4711")
    assert ending_of(error, ("customer-4711",)).error_message == "ValueError: cannot use ***"
    assert ending_of(error, (), type_only=True).error_message == "ValueError"


# --- counting soft time limits --------------------------------------------------------------------


@pytest.fixture
def billiards_handler() -> Iterator[None]:
    """The process as billiard prepares a pool child."""
    before = signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)
    yield
    signal.signal(SIG_SOFT_TIMEOUT, before)


def strike() -> None:
    with pytest.raises(SoftTimeLimitExceeded):
        signal.raise_signal(SIG_SOFT_TIMEOUT)


@pytest.mark.usefixtures("billiards_handler")
def test_a_soft_limit_is_counted_and_raised() -> None:
    """The wrapped handler does what billiard's does, and counts."""
    watch = SoftLimitWatch()
    assert watch.watch() == 0
    strike()
    strike()
    assert watch.watch() == watch.struck == 2


@pytest.mark.usefixtures("billiards_handler")
def test_the_handler_is_wrapped_once_a_process() -> None:
    """Watching again costs nothing and counts no strike twice."""
    watch = SoftLimitWatch()
    for _ in range(3):
        watch.watch()
    strike()
    assert watch.struck == 1


@pytest.mark.usefixtures("billiards_handler")
def test_a_forked_child_watches_anew() -> None:
    """The parent watched before billiard set up its child: the child's limits count, too."""
    watch = SoftLimitWatch()
    watch.watch()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            signal.signal(SIG_SOFT_TIMEOUT, soft_timeout_sighandler)  # as billiard's child does
            watch.watch()
            with contextlib.suppress(SoftTimeLimitExceeded):
                signal.raise_signal(SIG_SOFT_TIMEOUT)
            code = 0 if watch.struck == 1 else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert watch.struck == 0


def test_a_handler_of_somebody_else_is_left_alone() -> None:
    """Outside a pool child the signal may mean anything."""
    struck: list[int] = []
    before = signal.signal(SIG_SOFT_TIMEOUT, lambda number, frame: struck.append(number))
    try:
        watch = SoftLimitWatch()
        watch.watch()
        signal.raise_signal(SIG_SOFT_TIMEOUT)
        assert (watch.struck, len(struck)) == (0, 1)
    finally:
        signal.signal(SIG_SOFT_TIMEOUT, before)


@pytest.mark.usefixtures("billiards_handler")
def test_a_thread_cannot_watch_and_does_not_fail() -> None:
    """Signal handlers belong to the main thread: a threads pool has no soft limits to count."""
    watch = SoftLimitWatch()
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(watch.watch()))
    thread.start()
    thread.join()
    assert counts == [0]
    assert signal.getsignal(SIG_SOFT_TIMEOUT) is soft_timeout_sighandler


def test_a_platform_without_the_signal_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where billiard knows no soft limits there is nothing to count."""
    monkeypatch.setattr("tasks.endings.SIG_SOFT_TIMEOUT", None)
    assert SoftLimitWatch().watch() == 0


# --- a signal at any line -------------------------------------------------------------------------


class Bench:
    """An app in this process with two skills, a memory of its own for every run, and Celery's
    tracer in the place of a worker."""

    def __init__(self, app: SkillHost, memories: list[FakeMemory]) -> None:
        self.app = app
        self.memories = memories
        self.ran: list[str] = []

        @app.skill("test.returns", version="1")
        def returns(mark: str) -> str:
            self.ran.append(mark)
            return mark

        @app.skill("test.raises", version="1")
        def raises(mark: str) -> None:
            self.ran.append(mark)
            raise ValueError("no")

        self.skills = {"returns": returns, "raises": raises}

    def fresh(self) -> FakeMemory:
        self.ran.clear()
        self.memories.append(FakeMemory())
        return self.memories[-1]

    def deliver(self, name: str, task_id: str) -> None:
        """As a pool child does with a message."""
        skill = self.skills[name]
        headers = InvocationContext("cuo-cpo@0.4.1", TENANT).headers()
        request = {"id": task_id, "task": skill.name, "delivery_info": {}, **headers}
        build_tracer(skill.name, skill, app=self.app)(task_id, ["mark"], {}, request)

    def call(self, name: str, task_id: str) -> None:
        """As a body does with another skill."""
        with acting_as("cuo-cpo@0.4.1", TENANT):
            self.skills[name]("mark")


class LatestMemory(FakeMemory):
    """Passes every row on to the memory of the current run."""

    def __init__(self, memories: list[FakeMemory]) -> None:
        super().__init__()
        self._memories = memories

    def emit(self, row: Any, once: Any = None, hold: Any = None) -> Any:
        return self._memories[-1].emit(row, once, hold)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    memories: list[FakeMemory] = []
    monkeypatch.setattr(runtime, "open_memory", lambda url, timeout: LatestMemory(memories))
    with SkillHost(
        "bench", broker="memory://", backend="cache+memory://", set_as_current=False
    ) as app:
        app.conf.audit_instrument = False
        app.conf.audit_spool_dir = str(tmp_path)
        logging.disable()  # pytest would keep every record, with all that hangs on its traceback
        yield Bench(app, memories)
        logging.disable(logging.NOTSET)


def struck_runs(
    bench: Bench, run: Callable[[str, str], None], name: str, error: BaseException
) -> Iterator[tuple[FakeMemory, str, str]]:
    """One run for every line of ours, with the signal at that line: its rows, and the line."""
    bench.fresh()
    with contextlib.suppress(ValueError):
        run(name, "warm-up")
    for number in range(10_000):
        memory, task_id = bench.fresh(), f"{type(error).__name__}-{number}"
        with (
            Strike(error, number, invocation, recorder, alarms, task) as strike,
            contextlib.suppress(type(error), ValueError),
        ):
            run(name, task_id)
        yield memory, task_id, strike.place
        if not strike.struck:
            assert number > 80, "the signals missed the code under test"
            return


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize("name", ["returns", "raises"])
@pytest.mark.parametrize("how", ["deliver", "call"])
def test_a_soft_limit_at_any_line_leaves_no_half_invocation(
    bench: Bench, name: str, how: str
) -> None:
    """No body without its started row, no started row without its completed one, no result before
    it, and no caller left over for the next task of the process."""
    soft_limit = SoftTimeLimitExceeded()
    for memory, task_id, place in struck_runs(bench, getattr(bench, how), name, soft_limit):
        kinds = memory.kinds()
        assert kinds in ([], [STARTED, COMPLETED]), place
        assert kinds or not bench.ran, place
        assert kinds or bench.app.backend.get_state(task_id) != "SUCCESS", place
        assert find_context() is None, place


@pytest.mark.parametrize("name", ["returns", "raises"])
@pytest.mark.parametrize("how", ["deliver", "call"])
def test_an_exit_at_any_line_leaves_no_body_unrecorded(bench: Bench, name: str, how: str) -> None:
    """SIGTERM in a pool child, for which Celery calls no hook: whatever ran is closed in the child.

    Between the started row and the body a delivered invocation may stay open: the main process
    closes it when it finds the child gone.
    """
    left_open = 0
    for memory, _, place in struck_runs(bench, getattr(bench, how), name, SystemExit(3)):
        kinds = memory.kinds()
        assert kinds in ([], [STARTED], [STARTED, COMPLETED]), place
        assert find_context() is None, place
        if kinds == [STARTED]:
            left_open += 1
            assert not bench.ran, place
    assert left_open == 0 if how == "call" else left_open < 10
