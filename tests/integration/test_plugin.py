"""The pytest plugin, as an application's own tests use it: another pytest run in its folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.stack import ROOT

pytest_plugins = ["pytester"]

SNIPPET = re.compile(r"<!-- snippet: (\S+) -->\n```python\n(.*?)```", re.S)

APP = """
from audit import AuditEmitFailed
from tasks import SkillHost, skill
from celery import Celery

shop = SkillHost.adopt(Celery("shop", broker="redis://127.0.0.1:1/0", backend="redis://127.0.0.1:1/0"))
ran = []

@skill("shop.quote", version="1.0.0", app=shop)
def quote(item, pieces=1):
    ran.append(item)
    return {"cents": 995 * pieces}

@skill("shop.broken", version="1.0.0", app=shop)
def broken():
    raise ValueError("no")

@skill("shop.slow", version="1.0.0", app=shop)
async def slow():
    return 1

@skill("shop.outer", version="1.0.0")
def outer():
    quote.delay("lamp")
    return quote("pen")["cents"]
"""


@pytest.fixture
def shop(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An application in a folder of its own; every address it knows is one where nobody listens."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{pytester.path}")
    monkeypatch.setenv("AUDIT_MEMORY_URL", "redis://127.0.0.1:1/1")
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("AUDIT_SPOOL_DIR", str(pytester.path / "never"))
    pytester.makepyfile(shop_app=APP)
    pytester.makeconftest('pytest_plugins = ["tasks.testing"]')
    return pytester


def run(shop: pytest.Pytester, body: str) -> pytest.RunResult:
    """The test of the application, in another process."""
    shop.makepyfile(test_shop="import pytest\nfrom shop_app import *\n" + body)
    return shop.runpytest_subprocess("-p", "no:cacheprovider", timeout=60)


def test_a_skill_is_tested_in_three_lines(shop: pytest.Pytester) -> None:
    """An adopted app's skill runs without any server, and its pair says success."""
    result = run(
        shop,
        """
def test_quote(audited):
    with audited.acting_as(): quote.delay("lamp", pieces=4)
    audited.pair(quote).succeeded()
""",
    )
    result.assert_outcomes(passed=1)
    assert not Path(shop.path / "never").exists()


def test_every_way_of_calling_in_process_is_seen(shop: pytest.Pytester) -> None:
    """Direct, eager and async calls, of two apps, with their parent; the next test starts empty."""
    result = run(
        shop,
        """
def test_all(audited):
    with audited.acting_as():
        assert slow.delay().get() == 1 and slow() == 1
        outer.delay()
    assert len(audited.pairs("shop.slow")) == 2
    for pair in audited.pairs(quote):
        pair.succeeded().called_by(audited.pair(outer))
    assert len(audited.pairs(quote)) == 2

def test_refused(audited):
    audited.assert_nothing()
    with audited.acting_as():
        broken.delay()
    audited.pair(broken).failed("ValueError").ended("raised")

def test_restored():
    assert not shop.conf.task_always_eager
    assert type(shop.skill_runtime).__name__ == "SkillRuntime"
""",
    )
    result.assert_outcomes(passed=3)


def test_a_failing_assertion_says_what_is_on_record(shop: pytest.Pytester) -> None:
    """Which skill, which ending, which error; and that nothing is there where nothing is."""
    result = run(
        shop,
        """
def test_success(audited):
    with audited.acting_as(): broken.delay()
    audited.pair(broken).succeeded()

def test_none(audited):
    audited.pair(quote)
""",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*expected success, but it is error",
            "*on record:",
            "*shop.broken * completed error raised ValueError: *",
            "*expected one invocation of shop.quote, found 0",
            "*on record: nothing",
        ]
    )


def test_a_name_that_is_no_skill_s_fails(shop: pytest.Pytester) -> None:
    """Misspelt, `pairs` would be empty for ever and every assertion over it would hold."""
    result = run(
        shop,
        """
def test_misspelt(audited):
    with audited.acting_as(): quote.delay("lamp")
    for pair in audited.pairs("shop.qoute"):
        pair.failed()

def test_spelt(audited):
    assert audited.pairs("shop.quote") == audited.pairs(quote) == []
""",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*no app that is tested has a skill 'shop.qoute'*"])


def test_an_app_that_is_made_in_the_test_fails_it(shop: pytest.Pytester) -> None:
    """Its skills knew the real memory, so that nothing is on record whatever they do."""
    shop.makepyfile(
        test_late="""
import pytest
from audit import AuditEmitFailed

def test_late(audited):
    from shop_app import quote
    with audited.acting_as(), pytest.raises(AuditEmitFailed): quote("lamp")
    audited.assert_nothing()
"""
    )
    result = shop.runpytest_subprocess("-p", "no:cacheprovider", timeout=60)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*made while the test ran*: shop. Import their modules*"])


def test_an_open_invocation_fails_its_test(shop: pytest.Pytester) -> None:
    """A started row without its completed row is an error at the end of the test."""
    result = run(
        shop,
        """
def test_open(audited):
    with audited.acting_as(): quote.delay("lamp")
    started = audited.rows[0]
    from audit.testing import InMemory
    audited.memory.__init__()
    audited.memory.emit(started)
""",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*open invocations: 1", "*shop.quote * started"])


def test_a_memory_that_is_down(shop: pytest.Pytester) -> None:
    """The body does not run, the caller gets 503; what a body left open is closed afterwards."""
    result = run(
        shop,
        """
def test_down(audited):
    with audited.acting_as():
        with audited.memory_down(), pytest.raises(AuditEmitFailed) as caught:
            quote("lamp")
        assert caught.value.http_status == 503 and ran == []
        with audited.memory_down(), pytest.raises(AuditEmitFailed):
            quote.delay("lamp").get()
        assert ran == []
        quote.delay("lamp")
    assert ran == ["lamp"]
    audited.pairs(quote)[-1].succeeded()
""",
    )
    result.assert_outcomes(passed=1)


def test_a_worker_in_the_same_process(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not eager, skills run in its threads over the memory of the test; the next test is eager."""
    monkeypatch.delenv("CELERY_BROKER_URL")  # it would go before the broker in this process
    result = run(
        shop,
        """
from celery.contrib.testing.worker import start_worker

here = SkillHost.adopt(Celery("here", broker="memory://", backend="cache+memory://"))

@skill("here.double", version="1.0.0", app=here)
def double(number):
    return 2 * number

def test_worker(audited):
    here.conf.task_always_eager = False
    with start_worker(here, perform_ping_check=False, pool="threads"), audited.acting_as():
        assert double.delay(4).get(timeout=20) == 8
    audited.pair(double).succeeded()

def test_eager_again(audited):
    with audited.acting_as():
        assert double.delay(5).get() == 10
    audited.pair(double).succeeded()
""",
    )
    result.assert_outcomes(passed=2)


def test_the_documented_test_passes(shop: pytest.Pytester) -> None:
    """The snippets of docs/testing.md, with the skill that the README declares."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/testing.md")]
    for name, code in SNIPPET.findall("".join(texts)):
        if name in ("my_skills.py", "conftest.py", "test_quote.py"):
            (shop.path / name).write_text(code, encoding="utf-8")
    shop.runpytest_subprocess("-p", "no:cacheprovider", timeout=60).assert_outcomes(passed=1)


def test_a_memory_that_goes_down_in_a_body(shop: pytest.Pytester) -> None:
    """The completed row waits in a spool of the test's own, and is on record after the outage."""
    result = run(
        shop,
        """
def test_late(audited):
    @skill("shop.unplugs", version="1.0.0", app=shop)
    def unplugs():
        audited.memory.down = True

    with audited.acting_as(), audited.memory_down():
        audited.memory.down = False
        unplugs.delay().get()
    audited.pair(unplugs).succeeded()
""",
    )
    result.assert_outcomes(passed=1)
    assert not (shop.path / "never").exists()
