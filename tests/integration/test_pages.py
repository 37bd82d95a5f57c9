"""The audit's pages in a real Flower: who sees them, what they say, what they never hold."""

from __future__ import annotations

import html
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from audit.embedded import EmbeddedServer
from tests.integration.flower import SHIPPED, Flower, start_flower
from tests.integration.stack import Stack, caller, running_stack
from tests.pages import OTHER
from tests.support import (
    TENANT,
    completed,
    make_identity,
    refused,
    started,
    wait_until,
)

SECRET = "sesame-9917"
SCRIPT = "<script>alert('x')</script>"
TRACES = "https://traces.example/trace/{trace_id}?view=tree"
FILE = "/audit/static/audit.css"
PAGES = (
    "/audit",
    "/audit/list",
    "/audit/invocation/ID",
    FILE,
    "/audit/task/TASK",
)


@dataclass
class Place:
    """A host and its Flower; ``ids`` are request ids by what became of the invocation."""

    stack: Stack
    flower: Flower
    task: str = ""
    ids: dict[str, str] = field(default_factory=dict)

    def text(self, path: str, status: int = 200) -> str:
        answer = self.flower.ask(path)
        assert answer.status == status, answer.text
        return answer.text

    def invocation(self, which: str) -> str:
        return self.text(f"/audit/invocation/{quote(self.ids[which], safe='')}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("pages-stack")
    with running_stack(directory) as stack:
        stack.worker("prefork", 2)
        at = tmp_path_factory.mktemp("pages-flower")
        place = Place(stack, start_flower(stack, at, AUDIT_TRACE_URL=TRACES))
        try:
            fill(place)
            yield place
        finally:
            place.flower.end()
            stack.running().kill()  # what it runs is to be seen, and ends no sooner


def fill(place: Place) -> None:
    """Invocations that ended in several ways, one that runs, and one that was refused."""
    stack = place.stack
    with caller():
        parent = stack.skills.echo.delay(SECRET)
        stack.skills.fail.delay(SECRET)
        died = stack.skills.die.delay("sigkill", SECRET)
        retried = stack.skills.retry.delay(SECRET)
        runs = stack.skills.busy.delay(SECRET)
    place.task = retried.id
    place.ids["closed"] = stack.pair(parent.id)[0].request_id
    place.ids["panic"] = stack.pair(died.id)[0].request_id
    place.ids["retried"] = stack.pair(retried.id, attempt=2)[0].request_id
    wait_until(lambda: stack.rows(task_id=runs.id), 20)
    place.ids["running"] = stack.rows(task_id=runs.id)[0].request_id
    barred = make_identity(tenant_id=OTHER)
    stack.memory.emit(refused(barred))
    place.ids["refused"] = barred.request_id


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("login", [None, "auditor:wrong", ":"])
def test_no_page_without_a_login(place: Place, page: str, login: str | None) -> None:
    """Each page answers 401 to whoever has no login, and shows nothing."""
    path = page.replace("ID", place.ids["closed"]).replace("TASK", place.task)
    answer = place.flower.ask(path, login=login)
    assert answer.status == 401
    assert "audit-part" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_only_reads(place: Place, page: str, method: str) -> None:
    """Every method but GET and HEAD is refused."""
    path = page.replace("ID", place.ids["closed"]).replace("TASK", place.task)
    assert place.flower.ask(path, method).status == 405


@pytest.mark.parametrize("page", PAGES[:4])
def test_head_answers_without_a_body(place: Place, page: str) -> None:
    """HEAD is what GET is, but for the body."""
    answer = place.flower.ask(page.replace("ID", place.ids["closed"]), "HEAD")
    assert (answer.status, answer.text) == (200, "")


def test_the_overview_says_how_things_stand(place: Place) -> None:
    """What runs, how things ended, what failed, what was refused; the keeper and the ledger."""
    page = place.text("/audit")
    assert place.ids["running"] in page
    assert "test.busy" in page
    for words in ("Endings over time", "The picture in numbers", "test.fail", "bad_arguments"):
        assert words in page
    assert "none at work" in page
    assert "The ledger is not configured" in page
    assert re.search(r"Looked at \d+ entries, back to", page)
    assert "That is all there is" in page
    assert "<rect" in page


def test_a_page_looks_as_far_as_it_says(place: Place) -> None:
    """One tenant's overview counts its rows alone."""
    page = place.text(f"/audit?tenant={OTHER}")
    assert "Looked at 1 entry" in page
    assert "test.fail" not in page
    assert "is no UUID" in place.text("/audit?tenant=me", 400)


def test_the_list_filters_as_the_command_line_does(place: Place) -> None:
    """Each filter is one of ``audit list``, and what does not pass is not there."""
    page = place.text("/audit/list?outcome=panic&since=1h&kind=completed&skill=test.die")
    assert place.ids["panic"] in page
    assert place.ids["closed"] not in page
    for query in (
        f"request={place.ids['closed']}",
        f"tenant={TENANT}",
        "persona=cuo-cpo%400.4.1&skill=test.echo",
        f"trace={place.stack.rows(request_id=place.ids['closed'])[0].payload['trace_id']}",
    ):
        page = place.text(f"/audit/list?{query}")
        assert place.ids["closed"] in page
        assert place.ids["refused"] not in page
    assert place.ids["closed"] not in place.text("/audit/list?until=1h")


def test_a_filter_in_error_is_named(place: Place) -> None:
    """What cannot be used is said beside its field, which keeps its text."""
    page = place.text("/audit/list?since=yesterday&outcome=success", 400)
    assert "is no time" in page
    assert 'value="yesterday"' in page
    assert 'aria-invalid="true"' in page
    assert "audit-part" in page
    assert place.flower.ask("/audit/list?cursor=nonsense").status == 400


def test_the_older_link_keeps_the_filters(place: Place) -> None:
    """Walking by the link of each page sees every invocation of the filter, and no other."""
    tenant = "6ba7b811-9dad-41d1-80b4-00c04fd430c8"
    pairs = [make_identity(tenant_id=tenant, skill_id="many.rows") for _ in range(120)]
    for identity in pairs:
        place.stack.memory.emit(started(identity))
        place.stack.memory.emit(completed(identity))
    path, seen, pages = f"/audit/list?tenant={tenant}&skill=many.rows", "", 0
    while path:
        text = place.text(path)
        seen, pages = seen + text, pages + 1
        found = re.search(r'id="audit-older" rel="next" href="([^"]+)"', text)
        path = html.unescape(found[1]) if found else ""
        assert not path or ("skill=many.rows" in path and f"tenant={tenant}" in path)
    assert pages == 3
    assert f'id="audit-newest" href="/audit/list?skill=many.rows&amp;tenant={tenant}"' in seen
    assert all(identity.request_id in seen for identity in pairs)
    assert place.ids["closed"] not in seen


def test_an_invocation_shows_both_rows_and_its_trace(place: Place) -> None:
    """Both rows, the outcome, the link to the trace, and the state of its proof."""
    page = place.invocation("panic")
    row = place.stack.rows(request_id=place.ids["panic"])[0]
    assert f"https://traces.example/trace/{row.payload['trace_id']}?view=tree" in page
    assert page.count("skill.invoked_started") >= 2  # a field, and as stored
    assert page.count("skill.invoked_completed") >= 2
    assert "worker_lost" in page
    assert "not configured" in page
    assert "Running for" not in page


def test_a_running_invocation_says_how_long(place: Place) -> None:
    """What runs has an age, and its process a sign of life."""
    page = place.invocation("running")
    assert "Running for" in page
    assert "alive" in page


def test_attempts_of_a_task_stand_together(place: Place) -> None:
    """Each attempt of one task is on the page of any of them."""
    page = place.invocation("retried")
    rows = place.stack.rows(task_id=place.task, kind="skill.invoked_started")
    assert len(rows) == 3
    assert all(row.request_id in page for row in rows)


def test_parent_and_children_are_a_tree(place: Place) -> None:
    """The page of a parent has its children, below each other, and a child names its parent."""
    root = make_identity(skill_id="tree.root")
    child = make_identity(skill_id="tree.child", parent_request_id=root.request_id)
    leaf = make_identity(skill_id="tree.leaf", parent_request_id=child.request_id)
    for identity in (root, child, leaf):
        place.stack.memory.emit(started(identity))
        place.stack.memory.emit(completed(identity))
    page = place.text(f"/audit/invocation/{root.request_id}")
    assert page.index("tree.root") < page.index("tree.child") < page.index("tree.leaf")
    assert page.count('class="audit-tree"') == 2
    assert "Published by:" in place.text(f"/audit/invocation/{leaf.request_id}")


def test_what_the_memory_does_not_have_is_404(place: Place) -> None:
    """An id without rows is said to be none."""
    assert "has no invocation 01NONE" in place.text("/audit/invocation/01NONE", 404)


def test_flowers_task_page_leads_here(place: Place) -> None:
    """The task page and the navigation of Flower link to the audit; the link finds the task."""
    wait_until(lambda: place.flower.ask(f"/task/{place.task}").status == 200, 20)
    assert f'href="/audit/task/{place.task}"' in place.text(f"/task/{place.task}")
    assert 'href="/audit"' in place.text("/workers")
    assert place.flower.ask(f"/audit/task/{place.task}").status == 302
    assert place.ids["retried"] in place.text(f"/audit/list?task={place.task}")


@pytest.fixture
def forged(tmp_path: Path) -> Iterator[Place]:
    """A memory that somebody wrote to who keeps no schema."""
    stack = Stack(tmp_path)
    place = Place(stack, start_flower(stack, tmp_path))
    try:
        yield place
    finally:
        place.flower.end()
        stack.close(check=False)


def test_hostile_text_is_shown_as_text(forged: Place) -> None:
    """Markup in a persona, a skill id, a request id or a filter stays text on every page."""
    wild = make_identity(
        skill_id=f"a{SCRIPT}", request_id=f"01{SCRIPT}", caller_persona=f'"><b>x{SCRIPT}'
    )
    for row in (started(wild), completed(wild), refused(make_identity(caller_persona=SCRIPT))):
        forged.stack.memory.emit(row)
    wild_id = quote(wild.request_id)
    for path in (
        "/audit",
        "/audit/list",
        f"/audit/invocation/{wild_id}",
        f"/audit/list?skill={quote(SCRIPT)}",
        f"/audit/list?since={quote(SCRIPT)}",
        f"/audit/invocation/{quote(SCRIPT, safe='')}",
        f"/audit?tenant={quote(SCRIPT)}",
    ):
        assert "&lt;script&gt;" in forged.flower.ask(path).text, path
        for part in ("", "&part=1" if "?" in path else "?part=1"):
            text = forged.flower.ask(path + part).text
            assert "<script>alert" not in text, path
            assert '"><b>x' not in text, path
    assert f'href="/audit/invocation/{wild_id}"' in forged.text("/audit/list")


def test_entries_that_are_no_rows_are_counted(forged: Place) -> None:
    """What somebody wrote past the audit ends no page, and each page says that it is there."""
    forged.stack.memory.emit(started(make_identity()))
    with redis.Redis.from_url(forged.stack.memory_url) as client:
        client.xadd(f"audit:{{{TENANT}}}:rows", {"row": "no json"})
    for path in ("/audit", "/audit/list"):
        assert "1 entry among them is no row" in forged.text(path)


def test_a_part_is_the_page_without_its_frame(place: Place) -> None:
    """What a page reads again by itself has no navigation, and the same facts."""
    part = place.text("/audit?part=1")
    assert "<nav" not in part
    assert place.ids["running"] in part


def test_no_argument_is_on_any_page(place: Place) -> None:
    """Arguments and results are on no page, however it is asked for."""
    paths = ["/audit", "/audit/list", "/audit/list?outcome=error"]
    paths += [f"/audit/invocation/{one}" for one in place.ids.values()]
    paths += [f"/audit/invocation/{row.request_id}" for row in place.stack.rows(outcome="error")]
    for path in paths:
        assert SECRET not in place.text(path), path
    assert SECRET not in place.flower.text()


def test_nothing_is_kept_and_no_script_of_others_runs(place: Place) -> None:
    """Each page forbids to be kept, framed, or to run a script that is not Flower's or ours."""
    headers = place.flower.headers("/audit")
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    page = place.text("/audit")
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert re.findall(r"\son\w+=", page) == []
    for name in ("audit.js", "audit.css"):
        assert place.flower.ask(f"/audit/static/{name}").status == 200
    for name in ("../handlers.py", "%2e%2e/handlers.py", "..%2fhandlers.py"):
        assert place.flower.ask(f"/audit/static/{name}").status in {403, 404}


def answers_meanwhile(flower: Flower) -> bool:
    """Whether another address of Flower answers while a page still waits for the memory."""
    waiting = [threading.Thread(target=flower.ask, args=("/audit",)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    for _ in range(5):
        assert flower.ask("/healthcheck").text == "OK"
        assert flower.ask("/workers").status == 200
    first = all(thread.is_alive() for thread in waiting)
    for thread in waiting:
        thread.join()
    return first


def test_whoever_logs_in_elsewhere_is_sent_there(tmp_path: Path) -> None:
    """Under OAuth, a page without a login leads to it, and no part of a page is sent."""
    with running_stack(tmp_path) as stack:
        shutil.copy(SHIPPED, tmp_path)
        options = (
            "--auth=.*@example\\.com",
            "--auth_provider=flower.views.auth.GoogleAuth2LoginHandler",
            f"--cookie_secret={'c' * 40}",
            "--oauth2_key=key",
            "--oauth2_secret=secret",
            "--oauth2_redirect_uri=http://127.0.0.1/login",
        )
        flower = Flower(stack, tmp_path, *options)
        try:
            for path in ("/audit", "/audit/list", "/audit/invocation/01X", "/audit?part=1", FILE):
                answer = flower.ask(path, login=None)
                assert (answer.status, answer.text) == (302, ""), path
        finally:
            flower.end()


def test_a_memory_that_is_down_is_said_to_be(tmp_path: Path) -> None:
    """503 with a clear text and no traceback on every page; Flower answers meanwhile, and after."""
    with EmbeddedServer() as server, running_stack(tmp_path) as stack:
        flower = start_flower(stack, tmp_path, AUDIT_MEMORY_URL=server.url_for(2))
        try:
            assert "The memory has no rows yet" in flower.ask("/audit/list").text
            assert "Nothing is running" in flower.ask("/audit").text
            server.pause()
            try:
                assert answers_meanwhile(flower)
                for path in ("/audit", "/audit/list", "/audit/invocation/01X", "/audit?part=1"):
                    answer = flower.ask(path)
                    assert answer.status == 503, path
                    assert "audit memory does not answer" in answer.text
                    assert "Traceback" not in answer.text
                    assert str(server.port) not in answer.text
            finally:
                server.resume()
            wait_until(lambda: flower.ask("/audit").status == 200, 20)
        finally:
            flower.end()
