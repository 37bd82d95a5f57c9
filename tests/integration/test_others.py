"""Other integrations that copy arguments: what they take of a skill, and how to keep it from them.

Sentry's client and django-celery-results are no dependencies: they are installed when this runs,
and only workers of this module see them. Case of ``docs/values.md``, "What is left to you".
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from tests.integration.oracle import installed
from tests.integration.others_skills import declare_others
from tests.integration.sentry import SentrySink
from tests.integration.stack import ROOT, Stack, caller, running_stack
from tests.support import wait_until

VALUES = (ROOT / "docs" / "values.md").read_text(encoding="utf-8")
SNIPPET = re.compile(r"<!-- snippet: sentry -->\n```python\n(.*?)```", re.S)
KEY = {"id": "2026.others", "secret": "others-" + "0123456789abcdef" * 2}

VARS = "event exception values stacktrace frames vars"
TEXT = "event exception values value"
CRUMB = "event breadcrumbs values message"
SPAN = "transaction spans description"
JOB = "event extra celery-job"
JOB_OF_SPANS = "transaction extra celery-job"
REDIS = "transaction spans data redis.commands"

ALONE = "import sentry_sdk; sentry_sdk.init(traces_sample_rate=1.0{})"
#: What Sentry is told, and where secrets of which skill are in what it sends.
TAKEN: dict[str, tuple[str, dict[str, set[str]]]] = {
    "defaults": (
        ALONE.format(""),
        {
            "works": {CRUMB, SPAN},
            "fails": {TEXT, VARS},
            "logs_its_error": {VARS},
            "gives_up": {TEXT, VARS},
            "excluded fails": {VARS},
        },
    ),
    "personal data": (
        ALONE.format(", send_default_pii=True"),
        {
            "works": {CRUMB, SPAN, JOB, JOB_OF_SPANS, REDIS},
            "fails": {TEXT, VARS, JOB, JOB_OF_SPANS, REDIS},
            "logs_its_error": {VARS, JOB, JOB_OF_SPANS},
            "retries": {JOB_OF_SPANS, REDIS},
            "gives_up": {TEXT, VARS, JOB, JOB_OF_SPANS, REDIS},
            "excluded": {JOB_OF_SPANS},
            "excluded fails": {VARS, JOB, JOB_OF_SPANS},
        },
    ),
    "settings alone": (
        ALONE.format(", send_default_pii=False, include_local_variables=False"),
        {"works": {CRUMB, SPAN}, "fails": {TEXT}, "gives_up": {TEXT}},
    ),
}


class Calls:
    """One call of every skill, each with a secret of its own."""

    def __init__(self, app: Celery) -> None:
        self.results: dict[str, AsyncResult[Any]] = {}
        self.secrets: dict[str, str] = {}
        skills = vars(declare_others(app))
        for name, skill in skills.items():
            self.results[name] = skill.delay(self._secret(name))
        self.results["excluded fails"] = skills["excluded"].delay(
            text=self._secret("excluded fails"), fails=True
        )

    def _secret(self, name: str) -> str:
        """Letters that hardly ever follow one another elsewhere."""
        self.secrets[name] = "".join(random.choices("BGHJKPQVWXYZ", k=24))
        return self.secrets[name]

    def shows(self, name: str, text: str) -> bool:
        """Whether ``text`` has a piece of eight characters of a secret, or of a result."""
        both = (self.secrets[name], self.secrets[name][::-1])
        return any(one[i : i + 8] in text for one in both for i in range(len(one) - 7))


class Watched:
    """What Sentry got of a worker that ran every skill once.

    Attributes:
        calls: what was called.
        items: everything in the envelopes.
    """

    def __init__(self, directory: Path, set_up: str, pool: str = "prefork", **conf: Any) -> None:
        packages = [str(installed("sentry"))]
        with SentrySink() as sink, running_stack(directory, **conf) as stack:
            environ = {"SENTRY_DSN": sink.dsn, "SENTRY_SET_UP": set_up}
            worker = stack.worker(
                *(pool, 1),
                app="tests.integration.sentry_app",
                packages=packages,
                environ=environ,
                **conf,
            )
            with caller():
                self.calls = Calls(stack.app)
            for result in self.calls.results.values():
                result.get(timeout=20, propagate=False)
            worker.stop()  # Sentry's client sends what it has left
            self.items = list(sink.items())
            # Each invocation still has its two rows: seven calls, two of them tried twice.
            assert len(stack.rows()) == 2 * 9

    def taken(self) -> dict[str, set[str]]:
        """The places in which secrets are, by the skill they were given to."""
        found = {
            name: {p for kind, item in self.items for p in self._places(name, item, kind)}
            for name in self.calls.secrets
        }
        return {name: places for name, places in found.items() if places}

    def events(self) -> list[dict[str, Any]]:
        return [item for kind, item in self.items if kind == "event"]

    def texts(self) -> set[tuple[str, str]]:
        """Types and texts of all errors that Sentry shows."""
        chains = [event.get("exception", {}).get("values", []) for event in self.events()]
        return {(error["type"], error["value"]) for chain in chains for error in chain}

    def _places(self, name: str, part: Any, path: str) -> Iterator[str]:
        if isinstance(part, dict) and path not in (VARS, JOB, JOB_OF_SPANS, REDIS):
            for key, value in part.items():
                yield from self._places(name, key, f"{path} (key)")
                yield from self._places(name, value, f"{path} {key}")
        elif isinstance(part, list):
            for value in part:
                yield from self._places(name, value, path)
        elif self.calls.shows(name, str(part)):
            yield path


def documented() -> str:
    found = SNIPPET.search(VALUES)
    assert found
    return found[1]


# --- Sentry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", TAKEN)
def test_what_sentry_takes(tmp_path: Path, told: str) -> None:
    """Exactly what docs/values.md says: less with each setting, texts of errors with all of them.

    Should this fail with less than is said here, Sentry has changed for the better: say so there.
    """
    set_up, taken = TAKEN[told]
    assert Watched(tmp_path, set_up).taken() == taken


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_sentry_takes_nothing_as_documented(tmp_path: Path, pool: str) -> None:
    """With the documented set-up no argument and no result gets out, and errors still tell."""
    watched = Watched(tmp_path, documented(), pool, audit_context_keys=[KEY])
    assert watched.taken() == {}
    assert watched.texts() == {
        ("KeyError", "'***'\nnoted ***"),
        ("KeyError", "'***'"),
        ("ValueError", "cannot use ***"),
        ("ValueError", "never ***"),
        *{t for t in watched.texts() if t[0] == "BodyExcludedError"},
    }
    ids = {event["tags"]["celery_task_id"] for event in watched.events()}
    reporting = ("works", "fails", "logs_its_error", "gives_up", "excluded fails")
    assert ids == {watched.calls.results[name].id for name in reporting}
    assert [kind for kind, _ in watched.items].count("transaction") == 9


def test_sentry_gets_types_alone(tmp_path: Path) -> None:
    """Where the rows say an error's type alone, the documented set-up says no more."""
    watched = Watched(tmp_path, documented(), audit_error_message="type")
    assert watched.taken() == {}
    assert watched.texts() == {(kind, "") for kind, _ in watched.texts()}
    assert {kind for kind, _ in watched.texts()} >= {"KeyError", "ValueError"}


# --- django-celery-results ------------------------------------------------------------------------


class Tables:
    """A worker whose results are in Django's tables, once it ran every skill."""

    def __init__(self, directory: Path, **conf: Any) -> None:
        packages = [str(installed("django-celery-results"))]
        self.file = directory / "results.sqlite3"
        with running_stack(directory) as stack:
            environ = {"DJANGO_DATABASE": str(self.file), "CELERY_RESULT_BACKEND": "django-db"}
            self._migrate(stack, packages, environ)
            stack.worker(
                *("prefork", 1),
                app="tests.integration.django_app",
                packages=packages,
                environ=environ,
                **conf,
            )
            with caller():
                self.calls = Calls(stack.app)
            wait_until(lambda: len(self.rows("date_done", ended=True)) == 7, 30)
            self.hashes = {
                name: stack.pair(result.id)[0].payload["args_hash"]
                for name, result in self.calls.results.items()
            }

    def _migrate(self, stack: Stack, packages: list[str], environ: dict[str, str]) -> None:
        path = ":".join([str(ROOT), *packages])
        subprocess.run(
            [sys.executable, "-m", "tests.integration.django_app"],
            env={**stack.environ, **environ, "PYTHONPATH": path},
            check=True,
            timeout=60,
        )

    def rows(self, *columns: str, ended: bool = False) -> dict[str, tuple[Any, ...]]:
        """Columns of the results by the name of the call."""
        names = {result.id: name for name, result in self.calls.results.items()}
        ask = f"SELECT task_id, {', '.join(columns)} FROM django_celery_results_taskresult"  # noqa: S608
        if ended:
            ask += " WHERE status IN ('SUCCESS', 'FAILURE')"
        with closing(sqlite3.connect(self.file, timeout=20)) as connection:
            return {names[task_id]: tuple(more) for task_id, *more in connection.execute(ask)}

    def whole(self) -> str:
        """Everything in the file."""
        with closing(sqlite3.connect(self.file)) as connection:
            return "\n".join(connection.iterdump())


@pytest.fixture(scope="module")
def tables(tmp_path_factory: Any) -> Tables:
    return Tables(tmp_path_factory.mktemp("django"))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: Any) -> Tables:
    return Tables(tmp_path_factory.mktemp("django-extended"), result_extended=True)


def test_djangos_tables_hold_the_result(tables: Tables) -> None:
    """They are the result backend: a result is there for its caller, an error likewise."""
    (result,) = tables.rows("result")["works"]
    assert json.loads(result) == {"told": tables.calls.secrets["works"][::-1]}
    (error,) = tables.rows("result")["fails"]
    assert json.loads(error)["exc_message"] == [f"cannot use {tables.calls.secrets['fails']}"]


def test_djangos_tables_hold_no_arguments(tables: Tables) -> None:
    """Without ``result_extended`` their columns are empty, whatever the ending."""
    columns = tables.rows("task_args", "task_kwargs", "traceback")
    assert set(columns.values()) == {(None, None, None)}


def test_djangos_tables_hold_hashes_when_extended(extended: Tables) -> None:
    """With ``result_extended`` they hold the hash that the row has."""
    columns = extended.rows("task_args", "task_kwargs")
    assert set(columns) == set(extended.calls.secrets)
    for name, (args, kwargs) in columns.items():
        told = {json.loads(args), json.loads(kwargs)}
        assert f"sha256:{extended.hashes[name]}" in told, (name, told)
        assert not extended.calls.shows(name, f"{args} {kwargs}")


@pytest.mark.parametrize("which", ["tables", "extended"])
def test_djangos_tables_hold_a_reference_alone(request: pytest.FixtureRequest, which: str) -> None:
    """Of a skill with ``body_excluded`` nothing else is anywhere in the file."""
    tables: Tables = request.getfixturevalue(which)
    results = tables.rows("result")
    reference = json.loads(results["excluded"][0])
    assert set(reference) == {"request_id", "result_hash"}
    assert json.loads(results["excluded fails"][0])["exc_type"] == "BodyExcludedError"
    whole = tables.whole()
    assert not [name for name in ("excluded", "excluded fails") if tables.calls.shows(name, whole)]
    assert tables.calls.shows("works", whole)
