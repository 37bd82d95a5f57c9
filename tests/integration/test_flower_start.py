"""When Flower starts under the shipped flowerconfig.py, and that it holds however it is started."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.integration.flower import LOGIN, SHIPPED, Flower
from tests.integration.stack import Stack, running_stack
from tests.support import wait_until


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Servers alone: these Flowers need no worker."""
    with running_stack(tmp_path_factory.mktemp("flower-start")) as stack:
        yield stack


BASIC = {"FLOWER_BASIC_AUTH": LOGIN}
NO_START: dict[str, tuple[list[str], dict[str, str], str]] = {
    "nothing": ([], {}, "FLOWER_BASIC_AUTH=user:password"),
    "empty variable": ([], {"FLOWER_BASIC_AUTH": ""}, "basic_auth is user:password"),
    "empty option": (["--basic_auth="], {}, "basic_auth is user:password"),
    "no password": (["--basic-auth=auditor:"], {}, "basic_auth is user:password"),
    "no user": (["--basic_auth=:secret"], {}, "basic_auth is user:password"),
    "one entry too many": (["--basic_auth=a:b,"], {}, "basic_auth is user:password"),
    "no ASCII": ([], {"FLOWER_BASIC_AUTH": "auditor:schlüssel"}, "in ASCII"),
    "taken back": (["--basic_auth="], BASIC, "basic_auth is user:password"),
    "open api": ([], {**BASIC, "FLOWER_UNAUTHENTICATED_API": "true"}, "FLOWER_UNAUTHENTICATED_API"),
    "persistent": (["--persistent"], BASIC, "persistent"),
    "persistent variable": ([], {**BASIC, "FLOWER_PERSISTENT": "1"}, "persistent"),
    "debug": (["--debug=True"], BASIC, "debug"),
    "short cookie secret": (["--cookie_secret=pepper"], BASIC, "cookie_secret"),
}


@pytest.mark.parametrize("how", ["cwd", "conf"])
@pytest.mark.parametrize("case", NO_START)
def test_flower_does_not_start(stack: Stack, tmp_path: Path, case: str, how: str) -> None:
    """Without a login, or with what would undo the protection, it ends and says what to set."""
    arguments, environ, text = NO_START[case]
    run = started(stack, tmp_path, how, *arguments, **environ)
    assert run.status == 2
    assert text in run.text
    assert "Visit me" not in run.text
    assert [word for word in ("pepper", "schl", "correct-horse") if word in run.text] == []
    assert {path.name for path in tmp_path.iterdir()} <= {"flowerconfig.py", "flower.log"}


def started(stack: Stack, at: Path, how: str, *arguments: str, **environ: str) -> SimpleNamespace:
    """A Flower that shall end by itself."""
    if how == "cwd":
        shutil.copy(SHIPPED, at)
    conf = [f"--conf={SHIPPED}"] if how == "conf" else []
    flower = Flower(stack, at, *conf, *arguments, **environ)
    try:
        wait_until(lambda: flower.process.poll() is not None or "Visit me" in flower.text(), 60)
        return SimpleNamespace(status=flower.process.poll(), text=flower.text())
    finally:
        flower.end()


NEW_HANDLER = """
from flower.urls import handlers
from flower.views import BaseHandler
class New(BaseHandler):
    def get(self):
        self.write("!")
handlers.insert(0, ("/api/new", New))
handlers.insert(0, ("/healthcheck", type("Wider", (New,), {"post": New.get})))
"""


def test_what_a_later_flower_adds_is_shut(stack: Stack, tmp_path: Path) -> None:
    """A new address is refused, and so is a new way to write to a known one; under a prefix too."""
    conf = tmp_path / "conf" / "own.py"
    conf.parent.mkdir()
    future = "from __future__ import annotations\n"
    conf.write_text(SHIPPED.read_text().replace(future, future + NEW_HANDLER, 1))
    flower = Flower(stack, tmp_path, "--url_prefix=seen", FLOWER_CONF=str(conf), **BASIC)
    try:
        flower.port()
        for path in ("/seen/api/new", "/seen/api/task/result/some-id"):
            assert flower.ask(path, login=None).status == 401
            assert flower.ask(path).status == 403
        assert flower.ask("/seen/healthcheck").text == "!"
        assert flower.ask("/seen/healthcheck", "POST").status == 405
        assert flower.ask("/seen/api/tasks", login=None).status == 401
        assert flower.ask("/seen/api/tasks").status == 200
    finally:
        flower.end()


def test_a_login_by_oauth_will_do(stack: Stack, tmp_path: Path) -> None:
    """With ``--conf`` and OAuth Flower starts; whoever is not logged in is sent to the login."""
    provider = "--auth_provider=flower.views.auth.GithubLoginHandler"
    oauth = ("--auth=me@example.com", provider, "--oauth2_key=key", "--oauth2_secret=secret")
    where = f"--oauth2_redirect_uri=http://{'localhost'}/login"
    flower = Flower(stack, tmp_path, f"--conf={SHIPPED}", *oauth, where)
    try:
        flower.port()
        pages = [flower.ask(path, login=None).status for path in ("/", "/tasks", "/api/tasks")]
        assert pages == [302, 302, 302]
        assert flower.ask("/api/task/result/some-id", login=None).status == 401
        assert flower.ask("/login", login=None).status == 302
    finally:
        flower.end()
