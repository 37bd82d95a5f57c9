"""tasks/beat.py: due times, what a tick's message says, and entries beat does not start with."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, Scheduler
from celery.schedules import crontab, schedule

from audit import InvocationContext
from audit.errors import ScheduleDefinitionError
from audit.schedule import DUE_HEADER, ONCE_HEADER, SCHEDULE_HEADER, Tick
from tasks import SkillHost
from tasks.beat import SkillEntry, SkillScheduler, TickingScheduler, check_schedule, due_of
from tasks.identity import identify
from tasks.proof import PROOF_HEADER
from tests.support import TENANT

HEADERS = InvocationContext("scheduler@1", TENANT).headers()
NOW = datetime(2026, 11, 29, 21, 45, 7, 250_000, tzinfo=UTC)
KEY = {
    "id": "k",
    "secret": "0123456789abcdef" * 2,
    "tenants": ["6ba7b810-9dad-41d1-80b4-00c04fd430c8"],
}


@pytest.fixture
def app() -> SkillHost:
    app = SkillHost("beat", broker="memory://", set_as_current=False)
    app.skill("test.echo", version="1.0.0")(echo)
    app.task(name="test.plain", shared=False)(echo)
    return app


def echo(x: Any) -> Any:
    return x


class Kept(TickingScheduler, Scheduler):
    """Keeps its entries nowhere, and tells what it would send."""

    Entry = SkillEntry

    def send(self, name: str, *, advance: bool = True) -> dict[str, Any]:
        """The options that the task of an entry is published with."""
        sent: list[dict[str, Any]] = []
        task = self.app.tasks[self.schedule[name].task]
        task.apply_async = lambda *_, **options: sent.append(options)
        self.apply_async(self.schedule[name], advance=advance)
        return sent[0]


def entry(**change: Any) -> dict[str, Any]:
    made = {"task": "test.echo", "schedule": 60.0, "args": [1], "options": {"headers": HEADERS}}
    return {**made, **change}


# --- due times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "last", "due"),
    [
        (crontab(), NOW, "2026-11-29T21:46:00"),
        (crontab(), NOW - timedelta(seconds=8), "2026-11-29T21:45:00"),
        (crontab(), NOW - timedelta(hours=1), "2026-11-29T20:46:00"),
        (crontab(minute=0, hour=4), NOW, "2026-11-30T04:00:00"),
        (schedule(30), NOW, "2026-11-29T21:45:37.250000"),
        (schedule(30), NOW - timedelta(hours=1), "2026-11-29T20:45:37.250000"),
        (schedule(60, relative=True), NOW, "2026-11-29T21:46:00"),
        (crontab(), None, "2026-11-29T21:45:07.250000"),
    ],
)
def test_due_is_computed_from_the_last_run(
    app: SkillHost, made: Any, last: datetime | None, due: str
) -> None:
    """After a standstill the first tick that was missed; where it never ran, now."""
    made.app, made.nowfun = app, lambda: NOW
    assert due_of(made, last) == datetime.fromisoformat(due).replace(tzinfo=UTC)
    assert made.now() == NOW


def test_a_crontab_is_due_in_its_own_time_zone(app: SkillHost) -> None:
    """And told in UTC."""
    app.conf.timezone = "Europe/Berlin"
    made = crontab(minute=0, hour=4, app=app, nowfun=lambda: NOW)
    assert due_of(made, NOW) == datetime(2026, 11, 30, 3, tzinfo=UTC)


def test_two_beats_agree_on_crontabs_and_not_on_intervals(app: SkillHost) -> None:
    """Whatever millisecond each of them sent the last tick in."""
    for made, agree in ((crontab(app=app), True), (schedule(30, app=app), False)):
        dues = {due_of(made, NOW + timedelta(milliseconds=ms)) for ms in (0, 35)}
        assert (len(dues) == 1) is agree


# --- what is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("advance", [True, False])
def test_a_tick_names_its_entry_and_when_it_was_due(app: SkillHost, advance: bool) -> None:
    """As Celery's own loop sends it, and as RedBeat's does, which advances the entry first."""
    late = datetime.now(UTC) - timedelta(hours=1)
    app.conf.beat_schedule = {"nightly": entry(schedule=crontab(), once_per_tick=True)}
    scheduler = Kept(app)
    scheduler.schedule["nightly"].last_run_at = late
    sent = scheduler.send("nightly", advance=advance)
    due = (late + timedelta(minutes=1)).replace(second=0, microsecond=0)
    assert sent["headers"] == {
        **HEADERS,
        SCHEDULE_HEADER: "nightly",
        DUE_HEADER: due.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        ONCE_HEADER: True,
        "celery_beat_task": True,
    }
    assert "once_per_tick" not in sent
    assert scheduler.schedule["nightly"].options == {"headers": HEADERS, "once_per_tick": True}
    assert (scheduler.schedule["nightly"].last_run_at > late) is advance


def test_plain_entries_stay_as_they_are(app: SkillHost) -> None:
    """No header of ours is put into them."""
    app.conf.beat_schedule = {"plain (1)": entry(task="test.plain", options={"expires": 5})}
    sent = Kept(app).send("plain (1)")
    assert sent.pop("producer", None) is None
    assert sent == {"expires": 5, "headers": {"celery_beat_task": True}}


def test_an_entry_that_came_later_is_checked_before_it_is_sent(app: SkillHost) -> None:
    """As one that somebody wrote into RedBeat's store."""
    scheduler = Kept(app)
    scheduler.add(name="late", task="test.echo", schedule=schedule(5), once_per_tick=True)
    with pytest.raises(ScheduleDefinitionError, match=r"'late'.*no caller.*'late'.*a crontab"):
        scheduler.send("late")


def test_an_entry_keeps_its_option_through_every_copy(app: SkillHost) -> None:
    """On disk, in the next entry and where Celery updates an old one."""
    made = SkillEntry(**entry(name="nightly", schedule=crontab(), once_per_tick=True, app=app))
    old = SkillEntry(**entry(name="nightly", schedule=crontab(), app=app))
    assert made != old
    old.update(made)
    for copy in (next(made), pickle.loads(pickle.dumps(made)), old):  # noqa: S301
        assert copy.options == {"headers": HEADERS, "once_per_tick": True}


def test_what_an_unproven_message_says_of_a_tick_is_in_no_row(app: SkillHost) -> None:
    """A row of nobody's says nothing of schedules."""
    headers = Tick(schedule="nightly", due="2026-11-29T21:45:00.000000Z").headers()
    for proof, told in ((["proven", "k"], "nightly"), (["unproven", "altered"], None)):
        message = {**headers, PROOF_HEADER: proof}
        assert identify(app.tasks["test.echo"], message, None, "worker").schedule == told


# --- checks at start ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"options": {}}, "no caller persona and tenant"),
        ({"options": None}, "no caller persona and tenant"),
        ({"options": {"headers": {"audit_persona": "a@1"}}}, "no caller persona and tenant"),
        ({"options": {"headers": {**HEADERS, "audit_persona": "a b"}}}, "caller_persona must be"),
        ({"options": {"headers": {**HEADERS, "audit_tenant_id": "5"}}}, "tenant_id must be"),
        ({"once_per_tick": True}, "once_per_tick needs a crontab"),
        ({"once_per_tick": True, "schedule": timedelta(60)}, "once_per_tick needs a crontab"),
        ({"options": {"headers": HEADERS, "once_per_tick": True}}, "needs a crontab"),
        ({"once_per_tick": "no", "schedule": crontab()}, "must be True or False, got str"),
        ({"task": "test.plain", "once_per_tick": True}, "for skills only"),
        ({"task": "elsewhere", "options": {}, "once_per_tick": True}, "no caller persona"),
        ({"options": {"headers": HEADERS, "task_id": "same"}}, "task id of its own"),
        ({"options": {"headers": {**HEADERS, ONCE_HEADER: True}}}, "named by beat alone"),
        ({"options": {"headers": {**HEADERS, DUE_HEADER: "now"}}}, "named by beat alone"),
        ({"options": ["headers"]}, "options must be"),
        ({"args": []}, "args and kwargs do not fit"),
        ({"kwargs": {"y": 1}}, "args and kwargs do not fit"),
    ],
)
def test_beat_names_an_entry_that_could_not_be_audited(
    app: SkillHost, change: dict[str, Any], reason: str
) -> None:
    """And says what is wrong with it."""
    with pytest.raises(ScheduleDefinitionError, match=f"^beat entry 'bad' of .*{reason}"):
        check_schedule(app, {"good": entry(), "bad": entry(**change)})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"once_per_tick": True, "schedule": crontab()},
        {"once_per_tick": False},
        {"task": "test.plain", "options": {}},
        {"task": "elsewhere", "options": {}},
        {"task": "elsewhere"},
    ],
)
def test_beat_starts_with_entries_that_can_be(app: SkillHost, change: dict[str, Any]) -> None:
    """Skills with a caller, and plain tasks as they always were."""
    check_schedule(app, {"good": entry(**change)})


def test_an_entry_that_is_none_is_named(app: SkillHost) -> None:
    """Instead of an error that says nothing of it."""
    with pytest.raises(ScheduleDefinitionError, match=r"^beat entry 'none' .*must be"):
        check_schedule(app, {"none": 60.0, "good": entry()})


def test_arguments_that_are_made_when_it_is_sent_fit(app: SkillHost) -> None:
    """They are counted and not made."""

    def never() -> None:
        raise AssertionError

    check_schedule(app, {"lazy": entry(args=[BeatLazyFunc(never)])})


def test_every_faulty_entry_is_named(app: SkillHost) -> None:
    """So that the next start does not find the next one."""
    with pytest.raises(ScheduleDefinitionError, match=r"'one'.*'two'"):
        check_schedule(app, {"one": entry(options={}), "two": entry(once_per_tick=True)})


def test_a_name_that_celery_made_up_is_refused_and_not_repeated(app: SkillHost) -> None:
    """It has the arguments in it, and rows must not."""
    signature = app.tasks["test.echo"].s("geheim")
    app.add_periodic_task(60.0, signature, headers=HEADERS)
    assert "geheim" in next(iter(app.conf.beat_schedule))
    with pytest.raises(ScheduleDefinitionError, match=r"of task test\.echo.*name=") as caught:
        check_schedule(app, app.conf.beat_schedule)
    assert "geheim" not in str(caught.value)
    app.conf.beat_schedule = {}
    app.add_periodic_task(crontab(), signature, name="named", headers=HEADERS, once_per_tick=True)
    check_schedule(app, app.conf.beat_schedule)


def test_a_key_must_be_there_that_signs_for_the_entry(app: SkillHost) -> None:
    """Where contexts are signed, each tick would fail otherwise."""
    app.conf.audit_context_keys = [KEY]
    with pytest.raises(ScheduleDefinitionError, match="no key of audit_context_keys"):
        check_schedule(app, {"bad": entry()})


# --- which scheduler ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: SkillHost("a"), lambda: SkillHost.adopt(Celery("a"))])
@pytest.mark.parametrize(
    ("conf", "scheduler"),
    [
        ({}, "tasks.beat:SkillScheduler"),
        ({"beat_scheduler": "celery.beat:PersistentScheduler"}, "tasks.beat:SkillScheduler"),
        ({"beat_scheduler": "mine:Scheduler"}, "mine:Scheduler"),
    ],
)
def test_a_host_has_its_scheduler_unless_another_is_named(
    make: Any, conf: dict[str, Any], scheduler: str
) -> None:
    """Made as a host or adopted, configured before or after."""
    app = make()
    app.config_from_object({"timezone": "UTC", **conf})
    assert app.conf.beat_scheduler == scheduler
    configured = Celery("b")
    configured.config_from_object({"timezone": "UTC", **conf})
    assert configured.conf.timezone == "UTC"
    assert SkillHost.adopt(configured).conf.beat_scheduler == scheduler


def test_the_default_one_keeps_its_entries_in_a_file(app: SkillHost, tmp_path: Any) -> None:
    """What another version's scheduler wrote there is read, too."""
    app.conf.beat_schedule = {"nightly": entry(schedule=crontab(), once_per_tick=True)}
    name = str(tmp_path / "schedule")
    for _ in range(2):
        scheduler = SkillScheduler(app=app, schedule_filename=name)
        assert scheduler.schedule["nightly"].options["once_per_tick"] is True
        scheduler.close()
