"""tasks/runtime.py and the wiring in tasks/host.py: what the skills of one app share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from celery import Celery
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor

from audit.errors import MemoryUrlError, SettingsError
from tasks import SkillHost, host, telemetry
from tasks.amqp import SkillAMQP
from tasks.runtime import SkillRuntime, runtime_of
from tasks.worker import AuditStep


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose leases were asked for; none is taken, for that would reach for a server and a spool."""
    holders: list[str] = []
    monkeypatch.setattr(SkillRuntime, "hold_lease", lambda self, holder: holders.append(holder))
    return holders


def made(**conf: object) -> SkillHost:
    app = SkillHost("unit", broker="memory://", set_as_current=False)
    app.conf.update({"audit_instrument": False, **conf})
    return app


def in_a_fork(question: Callable[[], str]) -> str:
    """What ``question`` says in a child of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with os.fdopen(writing, "w") as pipe:
            pipe.write(question())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return answer


# --- the worker's id ------------------------------------------------------------------------------


def test_a_process_that_is_no_worker_has_an_id_of_its_own(held: list[str]) -> None:
    """The same as long as it lives, with a lease for it; another one after a fork."""
    runtime = SkillRuntime(made())
    mine = runtime.worker_id
    assert runtime.worker_id == mine
    assert set(held) == {mine}
    child = in_a_fork(lambda: f"{runtime.worker_id} {runtime.worker_id}").split()
    assert child[0] == child[1] != mine
    assert runtime.worker_id == mine


def test_a_fork_before_the_first_use_shares_no_id() -> None:
    """Parent and child each make their own."""
    runtime = SkillRuntime(made())
    assert in_a_fork(lambda: runtime.worker_id) != runtime.worker_id


def test_a_workers_children_share_its_id() -> None:
    """A worker is the process group: one id, made at boot."""
    runtime = SkillRuntime(made())
    before = runtime.worker_id
    runtime.boot_worker()
    assert runtime.worker_id != before
    assert in_a_fork(lambda: runtime.worker_id) == runtime.worker_id


def test_each_boot_has_a_new_id() -> None:
    """A worker that is started again is another one: it holds none of the old one's invocations."""
    runtime = SkillRuntime(made())
    ids = []
    for _ in range(3):
        runtime.boot_worker()
        ids.append(runtime.worker_id)
    assert len(set(ids)) == 3


def test_threads_that_ask_first_at_the_same_time_get_one_id() -> None:
    """Rows of one process never name two workers."""
    for _ in range(50):
        runtime = SkillRuntime(made())
        barrier, ids = threading.Barrier(8), []

        def ask(
            runtime: SkillRuntime = runtime,
            barrier: threading.Barrier = barrier,
            ids: list[str] = ids,
        ) -> None:
            barrier.wait()
            ids.append(runtime.worker_id)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 1


# --- settings and memory --------------------------------------------------------------------------


def test_an_app_has_one_runtime() -> None:
    """Made at the first call, and never shared between apps."""
    app, other = made(), made()
    assert runtime_of(app) is runtime_of(app)
    assert runtime_of(app) is not runtime_of(other)


def test_settings_are_read_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app is configured after it was made, and changed after Celery read its configuration."""
    app = made()
    assert app.conf.broker_url == "memory://"
    app.conf.audit_emit_timeout = 7
    assert runtime_of(app).settings.emit_timeout == 7
    monkeypatch.setenv("AUDIT_EMIT_TIMEOUT", "9")
    assert SkillRuntime(app).settings.emit_timeout == 9


def test_the_memory_is_the_one_the_settings_name() -> None:
    """Opened at the first use, and then the same; nothing is connected by that."""
    runtime = SkillRuntime(made(audit_memory_url="redis://127.0.0.1:1/5", audit_emit_timeout=3))
    assert runtime.memory is runtime.memory


@pytest.mark.parametrize(
    ("conf", "error", "text"),
    [
        ({"audit_memory_url": "mongodb://host/db"}, MemoryUrlError, "scheme 'mongodb'"),
        ({"audit_emit_timeout": "soon"}, SettingsError, "audit_emit_timeout .or AUDIT_EMIT_T"),
    ],
)
def test_what_cannot_be_used_is_an_error_at_the_first_use(
    conf: dict[str, str], error: type[Exception], text: str
) -> None:
    """Making and configuring the app is none; using its memory is, each time."""
    runtime = runtime_of(made(**conf))
    for _ in range(2):
        with pytest.raises(error, match=text):
            _ = runtime.memory


# --- the wiring -----------------------------------------------------------------------------------


@pytest.fixture
def instrumented(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(telemetry, "instrument", lambda: calls.append("now"))
    return calls


@pytest.mark.parametrize(("setting", "calls"), [(True, ["now"]), (False, [])])
def test_a_host_instruments_when_it_publishes(
    instrumented: list[str], setting: bool, calls: list[str]
) -> None:
    """Not when it is made or configured, and not where the setting says no."""
    app = SkillHost("unit", broker="memory://", set_as_current=False)
    app.conf.audit_instrument = setting
    assert instrumented == []
    app.send_task("unit.plain", (1,))
    assert instrumented == calls


def test_without_a_tracer_provider_nothing_is_instrumented() -> None:
    """Its spans would be none, and cost every task."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    telemetry.instrument()
    assert not CeleryInstrumentor().is_instrumented_by_opentelemetry


def test_a_bad_setting_stops_no_configuration(
    instrumented: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Where it is not needed nobody is bothered: the worker's start judges it."""
    app = SkillHost("unit", broker="memory://", set_as_current=False)
    app.conf.update(audit_emit_timeout="soon")
    assert app.conf.audit_emit_timeout == "soon"
    assert (instrumented, caplog.records) == ([], [])


def test_adopting_twice_changes_nothing() -> None:
    """Same runtime, same AMQP, one bootstep."""
    app = Celery("unit", broker="memory://", set_as_current=False)
    SkillHost.adopt(app)
    runtime, amqp = runtime_of(app), app.amqp
    assert SkillHost.adopt(app) is app
    assert (runtime_of(app), app.amqp) == (runtime, amqp)
    assert [step for step in app.steps["worker"] if step is AuditStep] == [AuditStep]
    assert isinstance(amqp, SkillAMQP)


def test_a_plain_apps_steps_are_its_own() -> None:
    """Another app of the process is not audited by accident."""
    made()
    assert AuditStep not in Celery("plain", set_as_current=False).steps["worker"]
    assert Celery.amqp_cls != host.AMQP
