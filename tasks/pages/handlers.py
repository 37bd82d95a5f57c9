"""The pages' handlers: who may see them, what they read, which page an answer becomes.

Every address, static files too, is behind Flower's login and answers GET and HEAD alone. What is
read is bounded, whatever the history. With ``?part=1`` the part alone is sent that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, Final, TypeVar

from flower.views import BaseHandler
from tornado.routing import URLSpec
from tornado.web import StaticFileHandler, authenticated

from audit.board.invocation import invocation
from audit.board.listing import listing
from audit.board.overview import Overview, overview
from audit.errors import AuditError, MemoryDamagedError, MemoryUnavailableError
from audit.memory.base import AuditMemory
from audit.plain import clean
from tasks.pages import picture, show
from tasks.pages.filters import FIELDS, Filters, read_filters
from tasks.pages.reader import reader_of

T = TypeVar("T")

#: Entries that a page looks at: each costs about 30 us of CPU, and a page has 300 ms.
WINDOW: Final = 2_500
#: Entries around an invocation that its page may look at, when somebody asks for more.
MOST_LOOK: Final = 40_000
AROUND: Final = 2_000
_STATIC: Final = str(Path(__file__).parent / "static")
_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)
_DOWN: Final = (
    "The audit memory does not answer. While that is so, no skill starts, and completed rows wait"
    " in the spools of their hosts. This page tries again by itself."
)
_logger = getLogger(__name__)


class AuditPage(BaseHandler):
    """What the pages share."""

    SUPPORTED_METHODS = ("GET", "HEAD")
    part = ""
    title = "Audit"

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    @authenticated
    async def get(self, *names: str) -> None:
        """The page; one that says what is wrong where the memory cannot be read."""
        try:
            await self.answer(*names)
        except AuditError as error:
            _logger.warning("an audit page could not be read: %s", clean(str(error)))
            self.show_error(503, _said(error))

    head = get

    async def answer(self, *names: str) -> None:
        """Read and show."""
        raise NotImplementedError

    async def ask_from(
        self, question: Callable[[AuditMemory, datetime, str | None], T]
    ) -> T | None:
        """The answer from the cursor that is asked for on; ``None``: it is none, and that is said.

        Whatever else the question asks has been checked before.
        """
        cursor = self.asked("cursor") or None
        try:
            return await self.ask(lambda memory, now: question(memory, now, cursor))
        except ValueError as error:
            if cursor is None or isinstance(error, AuditError):
                raise
            self.show_error(400, "That is no place in the audit. Begin again with the newest.")
            return None

    async def ask(self, question: Callable[[AuditMemory, datetime], T]) -> T:
        return await reader_of(self.application).ask(question)

    def asked(self, name: str) -> str:
        """One part of the query, as it came: Flower's own way escapes, and templates do that."""
        return str(self.get_query_argument(name, ""))

    def look(self, least: int) -> int:
        """How far the page may look."""
        text = self.asked("look")
        if not (text.isascii() and text.isdigit()):
            return least
        # Python makes no number of thousands of digits.
        return min(MOST_LOOK, max(least, int(text[:12])))

    def show(self, part: str, *, top: str = "", **values: Any) -> None:
        """The page of one part, below a ``top`` that does not change; or the part alone."""
        values = {"show": show, "title": self.title, **values}
        content = self.render_string(part, **values)
        if self.asked("part"):
            self.finish(content)
            return
        above = self.render_string(top, **values) if top else b""
        self.render("audit_page.html", title=self.title, above=above, content=content)

    def show_error(self, status: int, text: str) -> None:
        self.set_status(status)
        self.show("audit_error.html", status=status, text=text)


class OverviewPage(AuditPage):
    """``/audit``."""

    async def answer(self, *names: str) -> None:
        filters = self._filters()
        if filters.errors:
            self.show_error(400, f"tenant: {filters.errors['tenant']}")
            return
        ask = partial(
            overview,
            ledger=reader_of(self.application).settings.ledger_dir is not None,
            tenant_id=filters.wanted.tenant_id,
            look=WINDOW,
        )
        view = await self.ask_from(lambda memory, now, cursor: ask(memory, now, cursor=cursor))
        if view is not None:
            self._show_view(view, filters)

    def _show_view(self, view: Overview, filters: Filters) -> None:
        self.show(
            "audit_overview.html",
            view=view,
            picture=picture.picture_of(view.picture),
            size=(picture.WIDTH, picture.HEIGHT),
            moment_of=picture.moment_of,
            filters=filters,
            older=bool(self.asked("cursor")),
        )

    def _filters(self) -> Filters:
        tenant = self.asked("tenant")
        return read_filters(lambda name: tenant if name == "tenant" else "", datetime.now(UTC))


class ListPage(AuditPage):
    """``/audit/list``."""

    title = "Audit: list"

    async def answer(self, *names: str) -> None:
        filters = read_filters(self.asked, datetime.now(UTC))
        view = None
        if filters.errors:
            self.set_status(400)
        else:
            view = await self.ask_from(
                lambda memory, _, cursor: listing(
                    memory, filters.wanted, cursor=cursor, look=WINDOW
                )
            )
            if view is None:
                return
        self.show(
            "audit_list.html",
            top="audit_form.html",
            view=view,
            filters=filters,
            older=bool(self.asked("cursor")),
            all=FIELDS,
        )


class InvocationPage(AuditPage):
    """``/audit/invocation/<request_id>``."""

    title = "Audit: invocation"

    async def answer(self, *names: str) -> None:
        (request_id,) = names
        settings, look = reader_of(self.application).settings, self.look(AROUND)
        view = await self.ask(
            lambda memory, now: invocation(
                memory, request_id, now, ledger=settings.ledger_dir is not None, look=look
            )
        )
        if view is None:
            self.show_error(404, f"The memory has no invocation {clean(request_id)}.")
            return
        trace = view.line.trace_id if view.line else None
        self.show(
            "audit_invocation.html",
            view=view,
            trace=trace,
            trace_link=show.trace_link(settings.trace_url, trace),
            further=f"?look={look * 4}" if look * 4 <= MOST_LOOK else None,
        )


class TaskLink(AuditPage):
    """``/audit/task/<task_id>``: where Flower's task page leads to."""

    async def answer(self, *names: str) -> None:
        filters = Filters(texts={"task": names[0]})
        self.redirect(self.reverse_url("audit-list") + filters.query())


class AuditFile(StaticFileHandler, BaseHandler):
    """``/audit/static/...``: script and style, for whoever may see a page."""

    SUPPORTED_METHODS = ("GET", "HEAD")

    @authenticated
    async def get(  # type: ignore[override]  # the decorator's type is wider
        self, path: str, include_body: bool = True
    ) -> None:
        await super().get(path, include_body)

    def set_extra_headers(self, path: str) -> None:
        """Ask whether it is still the same: an upgrade brings script and page together."""
        self.set_header("Cache-Control", "no-cache")


def _said(error: AuditError) -> str:
    """What somebody reads of it. How the memory is reached is for nobody's eyes."""
    silent = isinstance(error, MemoryUnavailableError) and not isinstance(error, MemoryDamagedError)
    return _DOWN if silent else clean(str(error))


def page_addresses() -> list[URLSpec]:
    """What Flower's table of addresses gets."""
    return [
        URLSpec(r"/audit", OverviewPage, name="audit"),
        URLSpec(r"/audit/list", ListPage, name="audit-list"),
        URLSpec(r"/audit/invocation/(.+)", InvocationPage, name="audit-invocation"),
        URLSpec(r"/audit/task/(.+)", TaskLink, name="audit-task"),
        URLSpec(r"/audit/static/(.+)", AuditFile, {"path": _STATIC}, name="audit-static"),
    ]
