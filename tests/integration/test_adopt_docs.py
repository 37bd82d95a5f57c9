"""docs/adopt.md as a reader follows it: an application that exists, and a Django project."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_app

from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory
from audit.row import COMPLETED, REFUSED, STARTED, AuditRow
from tasks import SkillHost
from tests.integration.oracle import installed
from tests.integration.stack import ROOT
from tests.support import TENANT, checked_memory, wait_until

PAGE = (ROOT / "docs" / "adopt.md").read_text(encoding="utf-8")
SNIPPET = re.compile(r"<!-- snippet: (?P<name>\S+) -->\n```python\n(?P<code>.*?)```", re.S)
WEB = "proj-web@1.0.0"

SETTINGS = """
import os
SECRET_KEY = "not one"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "proj.urls"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"],
                         "ATOMIC_REQUESTS": True}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions",
                  "shop"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
              "django.contrib.auth.middleware.AuthenticationMiddleware",
              "proj.caller.CallerMiddleware"]
CELERY_BROKER_URL = os.environ["BROKER"]
CELERY_RESULT_BACKEND = os.environ["BROKER"]
CELERY_AUDIT_MEMORY_URL = os.environ["MEMORY"]
"""
URLS = """
from functools import partial

from django.db import transaction
from django.http import JsonResponse
from django.urls import path

from shop.tasks import restock


def after_commit(request):
    transaction.on_commit(partial(restock.delay, 7))
    return JsonResponse({})


def waits(request):
    return JsonResponse({"result": restock.delay(8).get(timeout=60)})


urlpatterns = [path("after-commit", after_commit), path("waits", waits)]
"""
#: Prints the status and the body of each page, once for a user and once for nobody.
BROWSE = """
import json, sys
import django
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

call_command("migrate", verbosity=0)
known = Client()
known.force_login(User.objects.get_or_create(username="jane")[0])
clients = {"known": known, "nobody": Client()}
for who, page in (word.split(":") for word in sys.argv[1:]):
    answer = clients[who].get("/" + page)
    print(json.dumps([answer.status_code, answer.json()]))
"""


@dataclass
class Project:
    """An application's folder, its servers, and its worker once that was started."""

    folder: Path
    environ: dict[str, str]
    memory: AuditMemory
    store: EmbeddedServer
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_worker(self, app: str) -> None:
        path = self.folder / "worker.log"
        with path.open("wb") as log:
            command = [sys.executable, "-m", "celery", "-A", app, "worker", "-c", "1", "-l", "INFO"]
            self.workers.append(
                subprocess.Popen(command, cwd=self.folder, env=self.environ, stdout=log, stderr=log)
            )
        wait_until(lambda: " ready." in path.read_text() or self.workers[-1].poll() is not None, 60)
        assert self.workers[-1].poll() is None, path.read_text()

    def run(self, *command: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def browse(self, *pages: str) -> list[Any]:
        return [json.loads(line) for line in self.run("browse.py", *pages).splitlines()]

    def rows(self, count: int, since: int = 0) -> list[AuditRow]:
        """The rows behind the first ``since``, once there are ``count`` of them."""
        return wait_until(
            lambda: (rows := list(self.memory.rows())[since:])[: len(rows) * (len(rows) >= count)],
            30,
        )

    def seen(self) -> int:
        return len(list(self.memory.rows()))

    def end(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
            worker.wait(40)


def project(folder: Path, packages: tuple[str, ...] = ()) -> Iterator[Project]:
    """The page's snippets in a folder, a broker, and a memory on a server of its own."""
    for match in SNIPPET.finditer(PAGE):
        path = folder / match["name"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(match["code"], encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith("AUDIT_")}
    with (
        EmbeddedServer() as broker,
        EmbeddedServer() as store,
        checked_memory(store.url) as memory,
    ):
        environ = {
            **own,
            "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, *packages))),
            "AUDIT_SPOOL_DIR": str(folder / "spool"),
            "AUDIT_KEEPER_LISTEN": "off",
        }
        addresses = {"BROKER": broker.url, "MEMORY": store.url}
        made = Project(folder, environ | addresses, memory, store)
        try:
            yield made
        finally:
            made.end()
            if not store.running:
                store.start()


# --- a Celery application -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("shop")
    for made in project(folder):
        (folder / "proj").rename(folder / "not-of-this")
        (folder / "shop" / "tasks.py").unlink()
        (folder / "shop").rmdir()
        made.environ["CELERY_BROKER_URL"] = made.environ["BROKER"]
        made.environ["CELERY_RESULT_BACKEND"] = made.environ["BROKER"]
        made.environ["AUDIT_MEMORY_URL"] = made.environ["MEMORY"]
        made.start_worker("shop")
        yield made


def test_a_caller_with_a_context_leaves_a_pair(shop: Project) -> None:
    """The caller's snippet prints the result; its skill left two rows, the plain task none."""
    before = shop.seen()
    assert shop.run("caller.py") == "invoice 7\n"
    started, completed = shop.rows(2, before)
    assert (started.kind, completed.kind) == (STARTED, COMPLETED)
    assert started.payload["skill_id"] == "shop.invoice"
    assert started.payload["caller_persona"] == "shop-web@3.1.0"
    assert shop.seen() == before + 2


def test_a_message_from_before_is_run_and_audited(shop: Project) -> None:
    """What the application published before it adopted anything runs, for the caller it names."""
    before = shop.seen()
    with old_app(shop) as app:
        assert app.send_task("shop.send_invoice", (3,)).get(timeout=60) == "invoice 3"
    started, completed = shop.rows(2, before)
    assert started.payload["caller_persona"] == "shop-before@1.0.0"
    assert completed.payload["outcome"] == "success"


def test_under_the_name_of_a_skill_it_is_refused(shop: Project) -> None:
    """The row says ``missing_context``, the publisher gets that error, and nothing ran."""
    before = shop.seen()
    with old_app(shop) as app:
        result = app.send_task("shop.invoice", (3,))
        with pytest.raises(Exception, match="no caller persona and tenant") as caught:
            result.get(timeout=60)
    assert type(caught.value).__name__ == "MissingInvocationContext"
    (row,) = shop.rows(1, before)
    assert (row.kind, row.meta["reason"]) == (REFUSED, "missing_context")


def test_the_doctor_lists_what_is_not_audited(shop: Project) -> None:
    """Both plain tasks, and no skill, stand in its line."""
    said = shop.run("-m", "celery", "-A", "shop", "audit", "doctor", "--json", status=1)
    lines = {line["name"]: line for line in map(json.loads, said.splitlines())}
    assert lines["plain tasks"]["level"].lower() == "warn"
    assert "shop.send_invoice" in lines["plain tasks"]["seen"]
    assert "shop.warm_cache" in lines["plain tasks"]["seen"]
    assert "shop.invoice" not in lines["plain tasks"]["seen"]


ERRORS = """
from audit import acting_as
from celery import Celery
from shop import app, invoice
from tasks import SkillHost

web = Celery("web", broker=app.conf.broker_url, backend=app.conf.result_backend)
SkillHost.adopt(web)


def tell(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, getattr(error, "http_status", "-"))


tell(lambda: invoice.delay(7))
with acting_as("x@1", tenant_id="550e8400-e29b-41d4-a716-446655440000"):
    tell(lambda: invoice.delay(float("nan")))
    tell(lambda: invoice.delay(1, 2))
    tell(lambda: app.send_task("shop.invoice", (1, 2)))
    by_name = web.send_task("shop.invoice", (1, 2))
tell(lambda: by_name.get(timeout=60))
"""


def test_errors_surface_where_the_page_says(shop: Project) -> None:
    """Where it is published, and nothing is; where the skill is not known there, as a result."""
    before = shop.seen()
    (shop.folder / "errors.py").write_text(ERRORS)
    assert shop.run("errors.py").splitlines() == [
        "MissingInvocationContext 400",
        "CanonicalizationError 400",
        "TypeError -",
        "SkillArgumentsError 400",
        "SkillArgumentsError 400",
    ]
    assert [row.meta["reason"] for row in shop.rows(1, before)] == ["bad_arguments"]


def test_the_application_tests_its_skill(shop: Project) -> None:
    """The page's test passes beside a ``conftest.py`` of one line, and touches no memory."""
    before = shop.seen()
    (shop.folder / "conftest.py").write_text('pytest_plugins = ["tasks.testing"]\n')
    plain = ("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".")
    assert "1 passed" in shop.run("-m", "pytest", "-q", *plain, "test_shop.py")
    assert shop.seen() == before


def old_app(shop: Project) -> Celery:
    """The application as it was before: no host."""
    broker = shop.environ["BROKER"]
    app = Celery("shop", broker=broker, backend=broker, set_as_current=False)
    app.conf.update(accept_content=["json"])
    return app


def test_adopting_leaves_the_app_the_current_one() -> None:
    """Celery's ``shared_task`` and ``current_app`` stay with the application that adopts."""
    before = current_app._get_current_object()
    try:
        app = Celery("theirs")
        before.set_current()  # as the import of the host does, which makes an app itself
        assert SkillHost.adopt(app) is current_app._get_current_object()
        aside = Celery("aside", set_as_current=False)
        SkillHost.adopt(aside)
        assert current_app._get_current_object() is app
    finally:
        before.set_current()


# --- a Django project -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def django(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    packages = (str(installed("django-celery-results")),)
    folder = tmp_path_factory.mktemp("django")
    for made in project(folder, packages):
        (folder / "shop.py").unlink()
        (folder / "shop" / "__init__.py").touch()
        (folder / "proj" / "__init__.py").write_text(
            "from .celery import app as celery_app\n\n__all__ = ('celery_app',)\n"
        )
        (folder / "proj" / "settings.py").write_text(SETTINGS)
        (folder / "proj" / "urls.py").write_text(URLS)
        (folder / "browse.py").write_text(BROWSE)
        made.environ |= {
            "DATABASE": str(folder / "db.sqlite3"),
            "DJANGO_SETTINGS_MODULE": "proj.settings",
        }
        made.start_worker("proj")
        yield made


def test_a_view_calls_for_the_user_who_is_logged_in(django: Project) -> None:
    """At once or after the commit: persona, tenant and the human stand in the row."""
    before = django.seen()
    assert django.browse("known:waits", "known:after-commit") == [[200, {"result": 8}], [200, {}]]
    rows = django.rows(4, before)
    started = [row for row in rows if row.kind == STARTED]
    assert [row.payload["skill_id"] for row in started] == ["shop.restock"] * 2
    assert {row.payload["caller_persona"] for row in started} == {WEB}
    assert {row.tenant_id for row in rows} == {TENANT}
    assert {row.meta["on_behalf_of"] for row in started} == {"user:1"}


def test_a_view_without_a_user_calls_nothing(django: Project) -> None:
    """The middleware answers with the error's own status, and nothing was published."""
    before = django.seen()
    assert django.browse("nobody:waits") == [[400, {"error": "MissingInvocationContext"}]]
    assert django.seen() == before


def test_a_memory_that_is_gone_is_a_503(django: Project) -> None:
    """The worker refuses to run it, and the waiting view's caller gets that status."""
    django.store.kill()
    try:
        assert django.browse("known:waits") == [[503, {"error": "AuditEmitFailed"}]]
    finally:
        django.store.start()
