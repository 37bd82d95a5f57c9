"""A real Flower under the shipped flowerconfig.py: what it shows of a worker, what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import flower.urls
import psutil
import pytest
from tornado.routing import URLSpec
from tornado.web import RequestHandler

from tests.integration.flower import LOGIN, SHIPPED, Flower
from tests.integration.stack import Stack, caller, running_stack
from tests.support import wait_until

NODE = "w0@test"
SECRET = "sesame-7741"
COOKIES = "a-secret-of-forty-characters-and-some-more"
#: What Flower answers to readers, by the address it is declared under; ID is a task that has run.
SHOWN = {
    "/": "/",
    "/workers": "/workers?json=1",
    "/worker/(.+)": f"/worker/{NODE}",
    "/task/(.+)": "/task/ID",
    "/tasks": "/tasks",
    "/tasks/datatable": (
        "/tasks/datatable?draw=1&start=0&length=9&order[0][column]=0&columns[0][data]=name"
    ),
    "/broker": "/broker",
    "/api/workers": "/api/workers",
    "/api/tasks": "/api/tasks",
    "/api/task/types": "/api/task/types",
    "/api/task/info/(.*)": "/api/task/info/ID",
    "/api/queues/length": "/api/queues/length",
}
#: What anybody may ask, and the answer's status.
OPEN = {
    "/metrics": ("/metrics", 200),
    "/healthcheck": ("/healthcheck", 200),
    "/static/(.*)": ("/static/js/flower.js", 200),
    "/login/?": ("/login", 404),
    "/logout": ("/logout", 200),
    ".*": ("/none-of-these", 404),
}
RUN = json.dumps({"args": ["by flower"]})
#: What changes something or reads a result: method, address, body. LATER is a task that waits.
REFUSED = {
    "/api/worker/shutdown/(.+)": ("POST", f"/api/worker/shutdown/{NODE}", ""),
    "/api/worker/pool/restart/(.+)": ("POST", f"/api/worker/pool/restart/{NODE}", ""),
    "/api/worker/pool/grow/(.+)": ("POST", f"/api/worker/pool/grow/{NODE}?n=1", ""),
    "/api/worker/pool/shrink/(.+)": ("POST", f"/api/worker/pool/shrink/{NODE}?n=1", ""),
    "/api/worker/pool/autoscale/(.+)": (
        "POST",
        f"/api/worker/pool/autoscale/{NODE}?min=1&max=3",
        "",
    ),
    "/api/worker/queue/add-consumer/(.+)": (
        "POST",
        f"/api/worker/queue/add-consumer/{NODE}?queue=other",
        "",
    ),
    "/api/worker/queue/cancel-consumer/(.+)": (
        "POST",
        f"/api/worker/queue/cancel-consumer/{NODE}?queue=skills",
        "",
    ),
    "/api/task/apply/(.+)": ("POST", "/api/task/apply/test.effect", RUN),
    "/api/task/async-apply/(.+)": ("POST", "/api/task/async-apply/test.effect", RUN),
    "/api/task/send-task/(.+)": ("POST", "/api/task/send-task/test.effect", RUN),
    "/api/task/result/(.+)": ("GET", "/api/task/result/ID", ""),
    "/api/task/abort/(.+)": ("POST", "/api/task/abort/LATER", ""),
    "/api/task/timeout/(.+)": (
        "POST",
        f"/api/task/timeout/test.effect?workername={NODE}&soft=1&hard=2",
        "",
    ),
    "/api/task/rate-limit/(.+)": (
        "POST",
        f"/api/task/rate-limit/test.effect?workername={NODE}&ratelimit=1",
        "",
    ),
    "/api/task/revoke/(.+)": ("POST", "/api/task/revoke/LATER?terminate=true", ""),
}
#: Logins that nobody has; "" goes as "Authorization: Basic =", which Flower decodes to "".
WRONG = (None, "auditor:", "auditor:wrong", ":", "correct-horse", "é:è")


@dataclass(frozen=True)
class Place:
    """A host that Flower watches: ``ran`` and ``later`` are ids of messages with the secret."""

    stack: Stack
    flower: Flower
    ran: str
    later: str

    def path(self, template: str) -> str:
        return template.replace("ID", self.ran).replace("LATER", self.later)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("flower-stack")) as stack:
        stack.worker(
            "prefork",
            1,
            shop_address=f"redis://teller:{SECRET}@shop:6379/0",
            shop_options=[{"passwd": SECRET}, f"amqps://:{SECRET}@[::1]//?password={SECRET}"],
            beat_schedule={"one": {"task": "test.echo", "schedule": 60.0, "args": [SECRET]}},
        )
        yield stack


@pytest.fixture(scope="module")
def place(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Flower with the file in its working directory, and options that ask for less protection."""
    directory = tmp_path_factory.mktemp("flower")
    shutil.copy(SHIPPED, directory)
    options = ("--read_only=False", "--logging=debug", f"--cookie_secret={COOKIES}")
    flower = Flower(stack, directory, *options, FLOWER_BASIC_AUTH=LOGIN, FLOWER_READ_ONLY="0")
    try:
        flower.port()
        wait_until(lambda: NODE in flower.ask("/api/workers?refresh=1").text, 30)
        with caller():
            ran = stack.skills.echo.delay(SECRET)
            later = stack.skills.echo.apply_async((SECRET,), countdown=3600)
        assert ran.get(timeout=20) == SECRET
        for task_id in (ran.id, later.id):
            wait_until(lambda: flower.ask(f"/api/task/info/{task_id}").status == 200, 20)  # noqa: B023
        yield Place(stack, flower, ran.id, later.id)
    finally:
        flower.end()


def known_handlers() -> dict[str, Any]:
    """Flower's own table: the class by the address."""
    specs = [one if isinstance(one, URLSpec) else URLSpec(*one) for one in flower.urls.handlers]
    return {spec.regex.pattern.removesuffix("$"): spec.handler_class for spec in specs}


def test_every_address_of_flower_is_known_here() -> None:
    """A Flower with one more address, or one more way to write, is looked at before it is used."""
    known = known_handlers()
    assert known.keys() == {*SHOWN, *OPEN, *REFUSED}
    writing = {
        address
        for address in {*SHOWN, *OPEN}
        for method in ("post", "put", "patch", "delete")
        if getattr(known[address], method) is not getattr(RequestHandler, method)
    }
    assert writing == {"/tasks/datatable", ".*"}


@pytest.mark.parametrize("address", [*SHOWN, *REFUSED])
def test_no_address_without_a_login(place: Place, address: str) -> None:
    """Each page and each call of the API answers 401 to whoever has no login, whatever it does."""
    method, path, body = REFUSED.get(address) or ("GET", SHOWN[address], "")
    for login in WRONG[:3]:
        assert place.flower.ask(place.path(path), method, login).status == 401, login
    answer = place.flower.send(place.path(path), method, {"Authorization": "Basic ="}, body)
    assert answer.status == 401


@pytest.mark.parametrize("login", WRONG)
def test_a_wrong_login_sees_nothing(place: Place, login: str | None) -> None:
    """No login that is wrong, empty or no ASCII opens a page or shows a traceback."""
    answer = place.flower.ask("/api/tasks", login=login)
    assert answer.status in {401, 500}
    assert "Traceback" not in answer.text
    assert place.ran not in answer.text


@pytest.mark.parametrize("address", SHOWN)
def test_what_reads_works_with_a_login(place: Place, address: str) -> None:
    """Pages and the reading API answer as ever."""
    assert place.flower.ask(place.path(SHOWN[address])).status == 200


@pytest.mark.parametrize("address", OPEN)
def test_what_is_open_shows_no_argument(place: Place, address: str) -> None:
    """What Flower never protects holds neither arguments nor results."""
    path, status = OPEN[address]
    answer = place.flower.ask(path, login=None)
    assert answer.status == status
    assert SECRET not in answer.text


def test_the_tasks_page_reads_by_post(place: Place) -> None:
    """The table of the tasks page asks by POST and gets its data; no other POST passes."""
    answer = place.flower.ask(SHOWN["/tasks/datatable"], "POST")
    assert place.ran in {row["uuid"] for row in json.loads(answer.text)["data"]}
    statuses = {
        place.flower.ask(place.path(path), "POST").status
        for address, path in SHOWN.items()
        if address != "/tasks/datatable"
    }
    assert statuses == {405}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("query", ["", "?timeout=1"])
def test_no_result_is_read_from_the_backend(place: Place, method: str, query: str) -> None:
    """The result endpoint refuses the id of a task whose result is there, and says why."""
    answer = place.flower.ask(f"/api/task/result/{place.ran}{query}", method)
    assert answer.status == 403
    assert SECRET not in answer.text
    assert method == "HEAD" or "flowerconfig.py" in answer.text


def what_can_change(place: Place) -> dict[str, Any]:
    """What the refused addresses would change."""
    inspect = place.stack.app.control.inspect([NODE], timeout=10)
    pool = inspect.stats()[NODE]["pool"]
    return {
        "revoked": inspect.revoked()[NODE],
        "queues": [queue["name"] for queue in inspect.active_queues()[NODE]],
        "rates": inspect.registered("rate_limit", "time_limit", "soft_time_limit")[NODE],
        "scheduled": [task["request"]["id"] for task in inspect.scheduled()[NODE]],
        "pool": (pool["max-concurrency"], pool["processes"], pool["timeouts"]),
        "later": place.stack.app.AsyncResult(place.later).state,
        "effects": (place.stack.journal(), len(place.stack.rows(skill_id="test.effect"))),
    }


def test_nothing_is_changed_through_flower(place: Place) -> None:
    """Every address that changes something refuses with a reason, and nothing has changed."""
    before = what_can_change(place)
    for method, path, body in REFUSED.values():
        coded = {"Authorization": "Basic YXVkaXRvcjpjb3JyZWN0LWhvcnNl"}
        answer = place.flower.send(place.path(path), method, coded, body)
        assert answer.status == 403, path
        assert "flowerconfig.py" in answer.text
    with caller():  # the one worker process runs in order: whatever Flower sent would be done
        place.stack.skills.noop.delay().get(timeout=20)
    assert what_can_change(place) == before
    assert before["later"] == "PENDING"
    assert before["scheduled"] == [place.later]


def test_the_pages_offer_no_change(place: Place) -> None:
    """Read-only holds against environment and command line: no page has a button to press."""
    page = place.flower.ask(f"/worker/{NODE}").text
    assert "worker-pool-grow" not in page
    assert "worker-tab-pool" in page


def test_what_inspect_tells_is_masked(place: Place) -> None:
    """Arguments of waiting tasks and of beat, and passwords in settings, are not shown."""
    told = json.loads(place.flower.ask(f"/api/workers?refresh=1&workername={NODE}").text)[NODE]
    assert [task["request"]["id"] for task in told["scheduled"]] == [place.later]
    assert told["conf"]["shop_address"] == "redis://********shop:6379/0"
    assert told["conf"]["beat_schedule"]["one"]["task"] == "test.echo"
    assert SECRET not in json.dumps(told)
    assert SECRET not in place.flower.ask(f"/worker/{NODE}").text


def test_it_listens_on_loopback_alone(place: Place) -> None:
    """Without an address Flower listens on 127.0.0.1."""
    sockets = psutil.Process(place.flower.process.pid).net_connections("tcp")
    assert {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_the_log_and_the_disk_hold_nothing(place: Place) -> None:
    """At level DEBUG the log shows no cookie secret, and Flower writes no file."""
    assert "Visit me at" in place.flower.text()
    assert COOKIES not in place.flower.text()
    files = {path.name for path in place.flower.log.parent.iterdir()}
    assert files == {"flowerconfig.py", "flower.log"}
