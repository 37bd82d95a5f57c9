"""tasks/pages: filters, picture, what is shown of a row, and the parts as they are rendered."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flower
import pytest

from audit.board.invocation import invocation
from audit.board.line import lines_of
from audit.board.listing import listing
from audit.board.measures import Bucket, Endings
from audit.board.overview import overview
from audit.cli_rows import list_
from audit.errors import MemoryUrlError, SettingsError
from audit.memory.base import RowFilter
from audit.row import Outcome, Reason, Refusal
from audit.testing import FakeClock, InMemory
from tasks.pages import picture, show
from tasks.pages.filters import FIELDS, Filters, read_filters
from tasks.pages.loader import LINKS, PagesLoader, linked
from tasks.pages.reader import Reader, reader_of
from tests.support import TENANT, completed, make_ending, make_identity, refused, started

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
FLOWER = Path(flower.__file__).parent / "templates"
SCRIPT = "<script>x</script>"


def read(**texts: str) -> Filters:
    return read_filters(lambda name: texts.get(name, ""), NOW)


def test_the_form_has_every_filter_of_the_command_line() -> None:
    """A field for each filter of ``audit list``, of its name, meaning the same part."""
    options = {
        option.opts[0].removeprefix("--"): option.name
        for option in list_.params
        if option.name not in {"limit", "as_json"}
    }
    assert {one.name: one.part for one in FIELDS} == options


def test_filters_mean_what_they_say() -> None:
    """Each text becomes its part of the filter; spaces around it are nothing."""
    filters = read(
        tenant=f" {TENANT.upper()} ",
        since="2h",
        until="2026-11-29T11:00:00Z",
        kind="completed",
        outcome="panic",
        skill="a.b",
        persona="p@1",
        trace="t",
        request="r",
        task="k",
    )
    assert filters.errors == {}
    assert filters.wanted == RowFilter(
        tenant_id=TENANT,
        since=NOW - timedelta(hours=2),
        until=NOW - timedelta(hours=1),
        kind="skill.invoked_completed",
        outcome="panic",
        skill_id="a.b",
        caller_persona="p@1",
        trace_id="t",
        request_id="r",
        task_id="k",
    )
    assert read(kind="skill.invoked_late").wanted.kind == "skill.invoked_late"
    assert read().wanted == RowFilter()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tenant", "me"),
        ("since", "soon"),
        ("until", "2026-11-29"),
        ("kind", "ended"),
        ("outcome", "bad"),
        ("skill", "x" * 301),
    ],
)
def test_a_filter_in_error_lets_nothing_be_guessed(name: str, text: str) -> None:
    """The error stands under the name of its field, which keeps its text."""
    filters = read(**{name: text, "task": "k"})
    assert filters.errors.keys() == {name}
    assert filters.texts[name] == text


def test_a_link_keeps_the_filters() -> None:
    """What was given comes back from the link, and what is added."""
    filters = read(skill="a&b=c", since="2h")
    assert filters.query(cursor="1-0/t") == "?skill=a%26b%3Dc&since=2h&cursor=1-0%2Ft"
    assert read().query() == ""


def endings_of(*counts: dict[Outcome, int]) -> Endings:
    zero = dict.fromkeys(Outcome, 0)
    buckets = tuple(
        Bucket(begin=NOW + timedelta(seconds=10 * n), counts={**zero, **one})
        for n, one in enumerate(counts)
    )
    return Endings(buckets=buckets, seconds_each=10)


def test_every_ending_is_in_the_picture_once() -> None:
    """Bars stack without gap or overlap, their heights are as the counts, none leaves the frame."""
    seen = picture.picture_of(
        endings_of({Outcome.PANIC: 1, Outcome.SUCCESS: 3}, {}, {Outcome.TIMEOUT: 2})
    )
    assert [(bar.outcome, bar.count) for bar in seen.bars] == [
        (Outcome.PANIC, 1),
        (Outcome.SUCCESS, 3),
        (Outcome.TIMEOUT, 2),
    ]
    panic, success, timeout = seen.bars
    assert success.y + success.height == pytest.approx(panic.y)
    assert (panic.y + panic.height, success.y) == (picture.HEIGHT, 0)
    assert timeout.height == pytest.approx(picture.HEIGHT / 2)
    assert timeout.x + timeout.width <= picture.WIDTH
    assert dict(seen.totals) == {
        Outcome.PANIC: 1,
        Outcome.ERROR: 0,
        Outcome.TIMEOUT: 2,
        Outcome.SUCCESS: 3,
    }
    assert (seen.begin, seen.end) == ("2026-11-29 12:00:00", "2026-11-29 12:00:30")
    assert len(seen.buckets) == 2


def test_a_picture_of_nothing_has_no_bars() -> None:
    """Neither of no time at all, nor of a time without endings; nor does the end of time end it."""
    assert picture.picture_of(endings_of()).bars == ()
    assert picture.picture_of(endings_of({})).bars == ()
    last = Bucket(begin=datetime.max.replace(tzinfo=UTC), counts=dict.fromkeys(Outcome, 1))
    assert picture.picture_of(Endings(buckets=(last,), seconds_each=10)).end.startswith("9999")


def test_a_trace_link_has_a_trace_id_and_nothing_else() -> None:
    """What a row claims becomes a part of a link only where it is a trace id."""
    template = "https://t.example/{trace_id}?a={b}"
    good = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert show.trace_link(template, good) == f"https://t.example/{good}?a={{b}}"
    for bad in (None, "", "x" * 32, good.upper(), f"{good}\n", f"{good[:-1]}/", "../" + good):
        assert show.trace_link(template, bad) is None
    assert show.trace_link(None, good) is None


def test_nothing_invisible_is_shown() -> None:
    """Control characters, and those that turn text around, leave no module of the pages."""
    assert show.word("a\u202eb\x00c\nd") == "a\ufffdb\ufffdc d"
    assert show.stored(b'{"a":"\xe2\x80\xae"}\xff') == '{"a":"\ufffd"}\ufffd'
    assert [show.word(value) for value in (None, "", 0, True)] == ["-", "-", "0", "true"]


def test_numbers_have_their_units() -> None:
    """A bound of a duration is marked, an age has two units, one entry is no entries."""
    assert [show.age(one) for one in (None, 0.9, 61, 3700, 90_000)] == [
        "-",
        "0s",
        "1m 1s",
        "1h 1m",
        "1d 1h",
    ]
    assert [show.milliseconds(one) for one in (None, 0, 4, 4.25, 1234.5)] == [
        "-",
        "0 ms",
        "4 ms",
        "4.2 ms",
        "1,234 ms",
    ]
    emits = (None, 0.99, 0, -0.1, 1, 4.25, -1, -3000)
    assert [show.emit(one) for one in emits] == [
        "-",
        *["under 1 ms"] * 3,
        "1 ms",
        "4.2 ms",
        *["the clocks differ"] * 2,
    ]
    assert (show.plural(1, "entry", "entries"), show.plural(2, "filter")) == (
        "1 entry",
        "2 filters",
    )
    lost = completed(make_identity(), make_ending(Reason.WORKER_LOST))
    bound = type(lost)(
        kind=lost.kind,
        ts=lost.ts,
        payload=lost.payload,
        meta={**lost.meta, "duration": "upper_bound"},
    )
    assert show.duration(lines_of([bound])[0]) == "≤ 12 ms"


def test_flowers_templates_have_the_places_for_our_links() -> None:
    """The Flower that is installed gets its links; one that looks different stays as it is."""
    for name, (_, link) in LINKS.items():
        text = (FLOWER / name).read_text()
        assert linked(name, text) == text.replace(LINKS[name][0], link + LINKS[name][0], 1) != text
        assert linked(name, "<p>other</p>") == "<p>other</p>"
    assert linked("base.html", "<p></p>") == "<p></p>"


# --- the parts, rendered --------------------------------------------------------------------------


def render(part: str, **values: Any) -> str:
    """A part as the handlers render it."""
    loader = PagesLoader(str(FLOWER))

    def module(name: str, /, **more: Any) -> str:
        return loader.load(name).generate(**space, **more).decode()

    space: dict[str, Any] = {
        "reverse_url": lambda name, *parts: "/".join([f"/{name}", *map(html.escape, parts)]),
        "_tt_modules": SimpleNamespace(Template=module),
    }
    return loader.load(part).generate(**space, show=show, **values).decode()


def render_overview(memory: InMemory, now: datetime, *, ledger: bool = False) -> str:
    view = overview(memory, now, ledger=ledger)
    return render(
        "audit_overview.html",
        view=view,
        picture=picture.picture_of(view.picture),
        size=(picture.WIDTH, picture.HEIGHT),
        moment_of=picture.moment_of,
        filters=Filters(),
        older=False,
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(clock: FakeClock) -> InMemory:
    return InMemory(clock=clock, now=clock.now)


def test_an_empty_overview_says_so(memory: InMemory, clock: FakeClock) -> None:
    """Nothing is made up: each part says that there is nothing, and where the ledger stands."""
    text = render_overview(memory, clock.now())
    assert "Looked at 0 entries." in text
    for words in ("Nothing is running", "No skill failed", "Nothing was refused", "none at work"):
        assert words in text
    assert "The ledger is not configured" in text
    assert "not configured</dd>" in text
    assert "not configured" not in render_overview(memory, clock.now(), ledger=True)


def test_the_picture_has_its_numbers_as_text(memory: InMemory, clock: FakeClock) -> None:
    """Whoever sees no picture gets the same counts from its description and from a table."""
    for reason in (Reason.RETURNED, Reason.RETURNED, Reason.WORKER_LOST):
        identity = make_identity()
        memory.emit(started(identity))
        memory.emit(completed(identity, make_ending(reason)))
    text = render_overview(memory, clock.now())
    assert "1 panic, 0 error, 0 timeout, 2 success" in " ".join(text.split())
    assert text.count("<rect") == 2
    assert "<caption>Endings in each" in text


def test_markup_in_rows_is_escaped_in_every_part(memory: InMemory, clock: FakeClock) -> None:
    """Every field that a row can fill with markup stays text, in all parts."""
    wild = make_identity(
        skill_id=SCRIPT, caller_persona=SCRIPT, request_id=SCRIPT, task_id=SCRIPT, version=SCRIPT
    )
    child = make_identity(skill_id=SCRIPT, parent_request_id=SCRIPT)
    memory.emit(started(wild))
    memory.emit(started(child))
    memory.emit(completed(child, make_ending(Reason.RAISED, error_message=SCRIPT)))
    memory.emit(refused(make_identity(skill_id=SCRIPT, caller_persona=SCRIPT), Refusal.POISON))
    view = invocation(memory, SCRIPT, clock.now(), ledger=False)
    parts = [
        render_overview(memory, clock.now()),
        render("audit_list.html", view=listing(memory, RowFilter()), filters=Filters(), older=True),
        render("audit_invocation.html", view=view, trace=SCRIPT, trace_link=None, further=None),
        render("audit_form.html", filters=read(since=SCRIPT, skill=SCRIPT), all=FIELDS),
        render("audit_error.html", status=404, text=SCRIPT),
    ]
    for part in parts:
        assert "<script" not in part
        assert "&lt;script&gt;" in part


def test_every_table_has_a_caption_and_every_field_a_label(
    memory: InMemory, clock: FakeClock
) -> None:
    """What a screen reader needs is there by construction."""
    memory.emit(started(make_identity()))
    text = render_overview(memory, clock.now())
    assert text.count("<table") == text.count("<caption>") > 0
    form = render("audit_form.html", filters=read(since="x"), all=FIELDS)
    fields = set(re.findall(r'<(?:input|select)[^>]* id="([^"]+)"', form))
    assert fields == set(re.findall(r'<label for="([^"]+)"', form))
    described = " ".join(re.findall(r'aria-describedby="([^"]+)"', form)).split()
    assert all(f'id="{one}"' in form for one in described)


def test_a_trimmed_invocation_sends_to_the_ledger() -> None:
    """Rows that have left the memory are said to be in the ledger."""
    view = SimpleNamespace(line=None, request_id="01X")
    text = render("audit_invocation.html", view=view, trace=None, trace_link=None, further=None)
    assert "they are in the ledger" in text


# --- asking ---------------------------------------------------------------------------------------


def test_a_question_is_asked_in_another_thread() -> None:
    """The loop never runs a question itself, and one reader serves a whole Flower."""
    conf = {"audit_memory_url": "redis://127.0.0.1:1/0"}
    application = SimpleNamespace(settings={}, capp=SimpleNamespace(conf=conf))
    reader = reader_of(application)
    assert reader_of(application) is reader
    asked = asyncio.run(reader.ask(lambda memory, now: threading.get_ident()))
    assert asked != threading.get_ident()


@pytest.mark.parametrize(
    ("conf", "error"),
    [
        ({"audit_memory_url": "ftp://h"}, MemoryUrlError),
        ({"audit_emit_timeout": "s3cret"}, SettingsError),
    ],
)
def test_a_setting_in_error_is_an_error_of_ours(conf: dict[str, str], error: type) -> None:
    """So that a page can say it, without the value."""
    reader = Reader(SimpleNamespace(conf=conf))
    with pytest.raises(error) as caught:
        asyncio.run(reader.ask(lambda memory, now: None))
    assert "s3cret" not in str(caught.value)
