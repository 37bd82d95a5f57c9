"""audit/keeper_http.py: what a keeper serves, and that whoever asks cannot stop it."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from audit import keeper_http as module
from audit import metrics
from audit.errors import MemoryUnavailableError, MemoryUnsuitableError, SettingsError
from audit.keeper_http import AT_ONCE, HUNG_SECONDS, Exporting, Pages, Proof, serving
from audit.testing import FakeClock, InMemory
from tests.support import wait_until

SECRET = "s3cret"


@dataclass
class Answer:
    status: int
    text: str
    kind: str


def ask(place: tuple[str, int], path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection(*place, timeout=10)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return Answer(reply.status, reply.read().decode(), reply.headers["Content-Type"])
    finally:
        connection.close()


@contextmanager
def served(
    *, late: float | None = 0.0, unready: str = "", text: bytes = b""
) -> Iterator[tuple[str, int]]:
    with serving(("127.0.0.1", 0), Pages(lambda: text, lambda: late, lambda: unready)) as place:
        yield place


def test_each_page_has_its_status() -> None:
    """200 with a word, or with the metrics; 404 for everything else; HEAD has no body."""
    with served(text=b"up 1\n") as place:
        assert ask(place, "/healthz") == Answer(200, "ok\n", "text/plain; charset=utf-8")
        assert ask(place, "/readyz?verbose").status == 200
        metrics_page = ask(place, "/metrics")
        assert (metrics_page.status, metrics_page.text) == (200, "up 1\n")
        assert metrics_page.kind.startswith("text/plain; version=0.0.4")
        assert ask(place, "/").status == ask(place, "/metrics/../x").status == 404
        assert ask(place, "/healthz", "HEAD").text == ""
        assert ask(place, "/healthz", "POST").status == 501


@pytest.mark.parametrize(
    ("late", "status"), [(None, 200), (0.0, 200), (HUNG_SECONDS, 200), (HUNG_SECONDS + 1, 503)]
)
def test_a_keeper_without_rounds_is_not_healthy(late: float | None, status: int) -> None:
    """503, with the seconds."""
    with served(late=late) as place:
        answer = ask(place, "/healthz")
        assert answer.status == status
        assert ("no round" in answer.text) == (status == 503)


def test_not_ready_says_why() -> None:
    """503 and the reason."""
    with served(unready="because") as place:
        assert (ask(place, "/readyz").status, ask(place, "/readyz").text) == (503, "because\n")
        assert ask(place, "/healthz").status == 200


def test_a_place_that_is_taken_is_an_error_at_once() -> None:
    """It names the setting and the place."""
    with (
        served() as place,
        pytest.raises(SettingsError, match=rf"AUDIT_KEEPER_LISTEN\): 127\.0\.0\.1:{place[1]} "),
        serving(place, Pages(bytes, lambda: None, str)),
    ):
        pytest.fail("two listen at one place")


def test_clients_that_say_nothing_hold_no_more_than_their_places() -> None:
    """Others are turned away meanwhile, and served when the first are gone."""
    with served() as place:
        held = [socket.create_connection(place) for _ in range(AT_ONCE)]
        wait_until(lambda: refused(place))
        assert threading.active_count() < 50
        for client in held:
            client.close()
        wait_until(lambda: not refused(place))


def refused(place: tuple[str, int]) -> bool:
    try:
        return ask(place, "/healthz").status != 200
    except (OSError, http.client.HTTPException):
        return True


def test_a_mistake_of_ours_tells_nothing_and_ends_nobody() -> None:
    """500 without the text of the error."""

    def fails() -> bytes:
        raise RuntimeError(SECRET)

    with serving(("127.0.0.1", 0), Pages(fails, lambda: None, str)) as place:
        answer = ask(place, "/metrics")
        assert answer.status == 500
        assert SECRET not in answer.text
        assert ask(place, "/readyz").status == 200


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_are_of_the_time_it_was_entered() -> None:
    """Names as Prometheus has them, no labels of the SDK's own."""
    with Exporting("k", scraped=True) as exporting:
        metrics.skill_invoked("a", "success", 5)
        metrics.spooled(3, 999)
        text = exporting.text().decode()
    metrics.skill_invoked("a", "success", 5)
    assert 'skill_invoked_total{outcome="success",skill_id="a"} 1.0' in text
    assert "skill_spooled_bytes 999.0" in text
    assert 'skill_audit_emit_failures_total{stage="start"} 0.0' in text
    assert "otel_scope" not in text
    with Exporting("k", scraped=True) as exporting:
        assert "skill_invoked_total" not in exporting.text().decode()


def test_who_leads_no_more_tells_no_old_story() -> None:
    """What only a leader knows is gone; how late it is, too."""
    with Exporting("k", scraped=True) as exporting:
        metrics.leads(True)
        seen = metrics.Orphans(count=1, seconds=99.0)
        metrics.swept(running=1, oldest_seconds=99, orphans={"t": seen})
        text = exporting.text().decode()
        assert 'skill_orphaned_seconds{tenant_id="t"} 99.0' in text
        assert "skill_keeper_late_seconds " in text
        assert "skill_abandoned_total 0.0" in text
        metrics.leads(False)
        text = exporting.text().decode()
        assert "skill_orphaned" not in text
        assert "skill_keeper_late_seconds" not in text
        assert "skill_keeper_leads 0.0" in text


# --- readiness ------------------------------------------------------------------------------------


def test_ready_is_a_write_that_no_trail_shows() -> None:
    """A new value stands in the memory each time; rows and tenants are as before."""
    memory, clock = InMemory(), FakeClock()
    proof = Proof(memory, clock=clock)
    assert proof.reason() == ""
    first = memory.sealed("readyz")
    assert first
    clock.pass_by(1)
    assert proof.reason() == ""
    assert memory.sealed("readyz") != first
    assert list(memory.rows()) == []
    assert memory.tenants() == []


def test_a_memory_that_refuses_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is away, unsuitable, or answers and takes nothing; the address stays out of it."""
    memory, clock = InMemory(), FakeClock()
    proof = Proof(memory, clock=clock)

    def reason() -> str:
        clock.pass_by(1)
        return proof.reason()

    memory.down = True
    assert reason() == "the audit memory does not take writes"
    memory.down = False
    assert reason() == ""
    monkeypatch.setattr(memory, "swap_sealed", lambda *_: False)
    assert reason() == "other keepers write all the time"

    def unsuitable() -> None:
        raise MemoryUnsuitableError("it may evict rows")

    monkeypatch.setattr(memory, "check", unsuitable)
    assert reason() == "it may evict rows"


def test_many_who_ask_cost_one_write_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict is good for whoever asks within that time."""
    memory, clock = InMemory(), FakeClock()
    asked = []
    monkeypatch.setattr(memory, "check", lambda: asked.append(1))
    proof = Proof(memory, clock=clock)
    for _ in range(10):
        proof.reason()
        clock.pass_by(0.25)
    assert len(asked) == 3


def test_a_client_that_sends_byte_after_byte_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No single read is late, and the whole request is: its place is free again."""
    monkeypatch.setattr(module, "CLIENT_SECONDS", 0.3)
    with served() as place, socket.create_connection(place) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\nX: ")

        def hung_up() -> bool:
            try:
                client.sendall(b"a")
            except OSError:
                return True
            return False

        wait_until(hung_up, 10)


def test_who_waits_for_a_proof_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow memory is asked once, not once by each in turn."""
    memory, clock = InMemory(), FakeClock()
    asked = []

    def check() -> None:
        asked.append(1)
        clock.pass_by(3)
        raise MemoryUnavailableError("slow")

    monkeypatch.setattr(memory, "check", check)
    proof = Proof(memory, clock=clock)
    assert proof.reason() == proof.reason() != ""
    assert len(asked) == 1
