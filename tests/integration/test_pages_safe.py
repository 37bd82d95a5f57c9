"""What the audit's pages can do to a memory, and what a forged memory can do to them: nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from audit.embedded import EmbeddedServer
from tests.integration.flower import Flower, start_flower
from tests.integration.stack import ROOT, Stack
from tests.pages import OTHER
from tests.support import TENANT, completed, make_ending, make_identity, refused, started

SCRIPT = "<script>alert('x')</script>"
#: What docs/pages.md gives Flower's own user of the memory.
READING = re.findall(r"^ACL SETUSER pages (.*)$", (ROOT / "docs/pages.md").read_text(), re.M)[0]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path)
    try:
        yield stack
    finally:
        stack.close(check=False)


def test_the_pages_need_no_command_that_writes(stack: Stack, tmp_path: Path) -> None:
    """Every page works for a user of the memory who may only read, and is refused nothing."""
    parent = make_identity()
    child = make_identity(parent_request_id=parent.request_id)
    for identity in (parent, child):
        stack.memory.emit(started(identity))
        stack.memory.emit(completed(identity))
    stack.memory.emit(started(make_identity()))
    with redis.Redis.from_url(stack.memory_url) as client:
        client.execute_command("ACL", "SETUSER", "pages", *READING.split())
        client.execute_command("ACL", "LOG", "RESET")
        at = stack.memory_url.replace("://", "://pages:PASSWORD@")
        flower = start_flower(stack, tmp_path, AUDIT_MEMORY_URL=at)
        try:
            (last, *_) = client.xrevrange(f"audit:{{{TENANT}}}:rows", count=1)
            cursor = quote(f"{last[0].decode()}/{TENANT}")
            for path in (
                "/audit",
                f"/audit?cursor={cursor}",
                f"/audit?tenant={TENANT}",
                f"/audit/list?since=1h&skill={parent.skill_id}",
                f"/audit/list?cursor={cursor}",
                f"/audit/list?request={parent.request_id}",
                f"/audit/invocation/{parent.request_id}",
                f"/audit/invocation/{child.request_id}",
            ):
                page = flower.ask(path)
                assert page.status == 200, (path, client.execute_command("ACL", "LOG"))
            denied = client.execute_command("ACL", "LOG")
            assert denied == []
        finally:
            flower.end()


def forge(memory_url: str, row: bytes, tenant: str) -> None:
    """Put a row where the memory of a tenant by that name would have it."""
    with redis.Redis.from_url(memory_url) as client:
        client.sadd("audit:tenants", tenant)
        client.xadd(f"audit:{{{tenant}}}:rows", {"row": row})


def test_no_name_that_a_forger_chooses_becomes_markup(stack: Stack, tmp_path: Path) -> None:
    """Not a tenant's, nor one in a message of an error, a version, a parent, a worker, a trace."""
    names = {
        "skill_id": SCRIPT,
        "caller_persona": f"'\"><img src=x onerror=alert(1)>{SCRIPT}",
        "version": SCRIPT,
        "worker": SCRIPT,
        "task_id": f"t/{SCRIPT}",
        "trace_id": SCRIPT,
        "parent_request_id": f"p{SCRIPT}",
    }
    wild = make_identity(**names)
    ending = make_ending(error_message=SCRIPT)
    for row in (started(wild), completed(wild, ending), refused(make_identity(**names))):
        stack.memory.emit(row)
    for tenant in (SCRIPT, TENANT):
        forge(stack.memory_url, started(make_identity(tenant_id=SCRIPT)).to_bytes(), tenant)
    halved = started(make_identity()).to_bytes().replace(b"alerts.triage", b"a\\ud800")
    forge(stack.memory_url, halved, TENANT)
    template = "https://traces.example/{trace_id}"
    flower = start_flower(stack, tmp_path, AUDIT_TRACE_URL=template)
    try:
        for path in (
            "/audit",
            "/audit/list",
            f"/audit/list?persona={quote(names['caller_persona'])}",
            f"/audit/invocation/{wild.request_id}",
            f"/audit/task/{quote(names['task_id'], safe='')}",
        ):
            page = flower.ask(path)
            assert page.status in (200, 302), path
            for harm in ("<script>alert", "<img src=x", "traces.example/<", "javascript:"):
                assert harm not in page.text, (path, harm)
        assert "2 entries among them are no row" in flower.ask("/audit").text
    finally:
        flower.end()


def test_a_memory_that_may_lose_rows_is_said_to_be_that(tmp_path: Path) -> None:
    """Not that it is silent: which setting to change, with status 503 on every page."""
    with EmbeddedServer(options={"maxmemory-policy": "allkeys-lru"}) as server:
        stack = Stack(tmp_path)
        forge(server.url, started(make_identity()).to_bytes(), TENANT)
        flower = start_flower(stack, tmp_path, AUDIT_MEMORY_URL=server.url)
        try:
            for path in ("/audit", "/audit/list", "/audit/invocation/01X"):
                page = flower.ask(path)
                assert page.status == 503
                assert "maxmemory-policy is allkeys-lru" in page.text
                assert "does not answer" not in page.text
        finally:
            flower.end()
            stack.close(check=False)


def test_a_damaged_memory_is_said_to_be_that(stack: Stack, tmp_path: Path) -> None:
    """Whose it is, and not that the memory is silent; the other tenants' rows are shown."""
    stack.memory.emit(started(other := make_identity(tenant_id=OTHER)))
    with redis.Redis.from_url(stack.memory_url) as client:
        client.sadd("audit:tenants", TENANT)
        client.set(f"audit:{{{TENANT}}}:rows", "x")
    flower = start_flower(stack, tmp_path)
    try:
        for path in ("/audit", "/audit/list"):
            page = flower.ask(path)
            assert page.status == 200
            assert other.request_id in page.text
            assert f"of tenant <code>{TENANT}</code> is damaged" in page.text
            assert TENANT not in flower.ask(f"{path}?tenant={OTHER}").text
            page = flower.ask(f"{path}?tenant={TENANT}")
            assert page.status == 503
            assert "somebody else has written it" in page.text
            assert TENANT in page.text
            assert "does not answer" not in page.text
    finally:
        flower.end()


def test_a_prefix_of_flower_is_one_of_the_pages(stack: Stack, tmp_path: Path) -> None:
    """Behind a proxy, under FLOWER_URL_PREFIX: pages, links and files are below it."""
    stack.memory.emit(started(identity := make_identity()))
    flower: Flower = start_flower(stack, tmp_path, FLOWER_URL_PREFIX="watch")
    try:
        for path in ("/audit", "/audit/list", f"/audit/invocation/{identity.request_id}"):
            page = flower.ask(f"/watch{path}")
            assert page.status == 200, path
            assert '"/audit' not in page.text, path
            assert 'src="/watch/audit/static/audit.js"' in page.text
        assert flower.ask("/watch/audit/static/audit.js").status == 200
        assert flower.ask("/audit").status == 404
    finally:
        flower.end()
