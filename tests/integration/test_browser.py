"""The audit's pages in a real browser, against a live host under load."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from audit.embedded import EmbeddedServer
from tests.integration.browser import Browser, browser_at
from tests.integration.flower import LOGIN, SHIPPED, Flower
from tests.integration.stack import Stack, Worker, caller, running_stack
from tests.support import make_identity, refused, wait_until

#: A browser on a busy machine.
pytestmark = pytest.mark.timeout(300)

DOOMED = "doomed"
PHONE = 360


@dataclass
class Place:
    stack: Stack
    memory: EmbeddedServer
    browser: Browser
    doomed: Worker

    def paths(self) -> dict[str, str]:
        """One address of each page, by a name for its picture."""
        wait_until(lambda: self.stack.rows(skill_id="test.descend"), 20)
        parent = self.stack.rows(skill_id="test.descend")[0].request_id
        return {
            "overview": "/audit",
            "list": "/audit/list?since=1h&skill=test.echo",
            "wrong": "/audit/list?since=yesterday",
            "empty": "/audit/list?skill=none.such",
            "invocation": f"/audit/invocation/{parent}",
            "none": "/audit/invocation/01NONE",
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("browser")
    with (
        EmbeddedServer() as memory,
        running_stack(directory, memory_url=memory.url_for(0)) as stack,
    ):
        stack.worker("prefork", 2)
        doomed = stack.worker("prefork", 1, task_default_queue=DOOMED)
        flower = Flower(stack, directory, f"--conf={SHIPPED}", FLOWER_BASIC_AUTH=LOGIN)
        try:
            fill(stack)
            with browser_at(flower.port(), directory) as browser:
                yield Place(stack, memory, browser, doomed)
        finally:
            flower.end()


def fill(stack: Stack) -> None:
    """Something of everything that the pages show."""
    with caller():
        for number in range(20):
            stack.skills.echo.delay(number)
        stack.skills.descend.delay(0, 3)
        stack.skills.panic.delay()
        stack.skills.fail.delay("it")
        stack.skills.overrun.delay(30)
        stack.skills.retry.delay("mark")
    stack.memory.emit(refused(make_identity(skill_id="test.refused")))


@contextmanager
def load(stack: Stack) -> Iterator[None]:
    """Calls, one after the other, until the block ends."""
    ended = threading.Event()

    def publish() -> None:
        with caller():
            while not ended.wait(0.05):
                stack.skills.echo.delay("load")
                stack.skills.fail.delay("load")

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_killed_child_appears_as_a_panic(place: Place) -> None:
    """During load, the page that is open shows a panic after SIGKILL, without being loaded anew."""
    page = place.browser
    with load(place.stack), caller():
        page.go("/audit")
        page.run("window.same = true")
        busy = place.stack.skills.busy.apply_async(("mark",), queue=DOOMED)
        wait_until(lambda: "test.busy" in page.text(), 30)
        before = page.run("return document.querySelector('.audit-legend').innerText")
        assert "panic" in before
        (child,) = psutil.Process(place.doomed.process.pid).children()
        os.kill(child.pid, signal.SIGKILL)
        failing = "return document.querySelector('#audit-failing-scroll')?.innerText || ''"
        wait_until(lambda: "test.busy" in page.run(failing), 40)
        page.shoot("overview-under-load")
        request_id = place.stack.pair(busy.id)[0].request_id
        assert page.run("return window.same") is True
        page.go(f"/audit/invocation/{request_id}")
        assert "worker_lost" in page.text()
        assert "panic" in page.text()
        page.shoot("invocation-panic")


def test_a_running_invocation_ends_before_ones_eyes(place: Place) -> None:
    """The page of an invocation turns from running to ended by itself."""
    page = place.browser
    with caller():
        slow = place.stack.skills.panic.apply_async((8.0,), queue=DOOMED)
    (row,) = wait_until(lambda: place.stack.rows(task_id=slow.id), 20)
    page.go(f"/audit/invocation/{row.request_id}")
    page.run("window.same = true")
    assert "Running for" in page.text()
    wait_until(lambda: "base_exception" in page.text(), 30)
    assert "Running for" not in page.text()
    assert page.run("return window.same") is True


def test_no_page_has_a_serious_fault(place: Place) -> None:
    """Axe finds nothing serious or critical on any page, light or dark, wide or narrow."""
    page = place.browser
    for theme in ("dark", "light"):
        page.go("/audit")
        page.run("localStorage.setItem('flower-theme', arguments[0])", theme)
        for name, path in place.paths().items():
            page.go(path)
            assert page.faults() == [], (name, theme)
            page.shoot(f"{name}-{theme}")
    assert [one for one in page.complaints() if "Content Security Policy" in one] == []


def test_every_page_fits_a_telephone(place: Place) -> None:
    """At 360 px no page scrolls sideways; wide tables do so by themselves, and by keyboard."""
    page = place.browser
    page.narrow(PHONE)
    try:
        for name, path in place.paths().items():
            page.go(path)
            page.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            width = page.run("return document.documentElement.scrollWidth")
            assert width <= PHONE, (name, width, page.run(WIDEST))
            page.shoot(f"{name}-{PHONE}")
        page.go("/audit/list")
        assert page.faults() == []
    finally:
        page.narrow(0)


WIDEST = """
return [...document.querySelectorAll('body *')].filter(one => !one.closest('.audit-scroll *') &&
  one.getBoundingClientRect().right > innerWidth).map(one => one.outerHTML.slice(0, 99)).slice(0, 5)
"""


def press(page: Browser, *keys: str) -> None:
    ActionChains(page.driver).send_keys(*keys).perform()


def tab_to(page: Browser, wanted: str) -> None:
    """Press Tab until the focus is on what this selector means."""
    for _ in range(60):
        if page.run("return document.activeElement.matches(arguments[0])", wanted):
            return
        press(page, Keys.TAB)
    pytest.fail(f"no Tab leads to {wanted}")


def test_the_list_is_filtered_by_keyboard(place: Place) -> None:
    """Without a mouse: to the filters, open them, type, Enter."""
    page = place.browser
    page.go("/audit/list")
    tab_to(page, "#audit-filters > summary")
    press(page, Keys.ENTER)
    tab_to(page, "#f-skill")
    press(page, "test.overrun", Keys.ENTER)
    wait_until(lambda: "skill=test.overrun" in page.driver.current_url, 20)
    wait_until(lambda: "timeout" in page.text(), 20)
    assert "test.echo" not in page.text()


def test_reading_anew_disturbs_nobody(place: Place) -> None:
    """Focus, opened details and what is being typed outlive that the page is read again."""
    page = place.browser
    with load(place.stack):
        page.go("/audit")
        page.run("document.getElementById('audit-numbers').open = true")
        page.run("document.querySelector('#audit-failing-scroll a').focus()")
        href = page.run("return document.activeElement.getAttribute('href')")
        page.run("window.scrollTo(0, 300)")
        page.wait_live()
        assert page.run("return document.activeElement.getAttribute('href')") == href
        assert page.run("return document.getElementById('audit-numbers').open") is True
        assert page.run("return window.scrollY") == 300
        page.go("/audit/list?skill=test.echo")
        page.run("document.getElementById('f-persona').focus()")
        press(page, "half a wo")
        page.wait_live()
        assert page.run("return document.activeElement.value") == "half a wo"


def focus(page: Browser, selector: str) -> None:
    page.run("document.querySelector(arguments[0]).focus()", selector)


def has_focus(page: Browser, selector: str) -> bool:
    return bool(page.run("return document.activeElement.matches(arguments[0])", selector))


def test_the_focus_stays_where_it_was(place: Place) -> None:
    """A link that stands in two tables keeps it; of one that is gone, its table has it."""
    page = place.browser
    with load(place.stack):
        page.go("/audit")
        twice = 'a[href$="skill=test.fail"]'
        assert page.run("return document.querySelectorAll(arguments[0]).length", twice) == 2
        focus(page, f"#audit-slowest-scroll {twice}")
        page.wait_live()
        assert has_focus(page, f"#audit-slowest-scroll {twice}")
        page.run("document.activeElement.setAttribute('href', '/gone')")
        page.wait_live()
        assert has_focus(page, "#audit-slowest-scroll")
        page.run("document.querySelector('#audit-slowest-scroll').id = 'gone'")
        page.wait_live()
        assert has_focus(page, "#audit-part")


def test_a_pause_holds(place: Place) -> None:
    """Whoever pauses gets no changes, and a hidden page asks for nothing."""
    page = place.browser
    page.go("/audit")
    page.wait_live()
    page.run("document.getElementById('audit-pause').click()")
    assert page.state() == "paused"
    page.run(
        "window.asked = 0; const own = window.fetch;"
        "window.fetch = (...all) => { window.asked += 1; return own(...all); };"
    )
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    assert page.run("return window.asked") == 0
    page.run("document.getElementById('audit-pause').click()")
    wait_until(lambda: page.run("return window.asked") > 0, 20)
    page.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(lambda: page.state() == "waits while hidden", 20)


def test_a_page_that_is_not_read_anew_says_so(place: Place) -> None:
    """With the memory stopped: stale, the old facts stay; then it is live again by itself."""
    page = place.browser
    page.go("/audit")
    page.wait_live()
    place.memory.pause()
    try:
        wait_until(lambda: page.state().startswith("stale: the memory cannot be read"), 40)
        assert "Running now" in page.text()
        page.shoot("overview-stale")
        page.go("/audit")
        assert "audit memory does not answer" in page.text()
        page.run("window.same = true")
        page.shoot("down")
        assert page.faults() == []
    finally:
        place.memory.resume()
    wait_until(lambda: "Running now" in page.text(), 40)
    assert page.state() == "live"
    assert page.run("return window.same") is True
