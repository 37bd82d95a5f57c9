"""`audit copy` with the rights that docs/memories.md names, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis

from audit.copying.copy import Copied
from audit.embedded import EmbeddedServer
from audit.memory import AuditMemory, migrate_memory, open_memory
from audit.testing import InMemory
from demo.postgres import PostgresServer
from tests.copying import copied
from tests.integration.test_copy import write_all_kinds
from tests.sealing import raw, seal

DOCS = Path(__file__).parents[2] / "docs"


def rules_of(page: str, user: str) -> list[str]:
    """The rules of a user as a page of the documentation has them, each bracket one."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (line,) = re.findall(rf"^ACL SETUSER {user} on >PASSWORD (.*)$", text, re.MULTILINE)
    return re.findall(r"\([^)]*\)|\S+", line)


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, str]]:
    """The URLs of a reader and of a copier, on one server."""
    with EmbeddedServer(options={"appendonly": "no"}) as server:
        with closing(redis.Redis.from_url(server.url)) as client:
            for user, page in (("pages", "pages.md"), ("copier", "memories.md")):
                client.execute_command(
                    "ACL", "SETUSER", user, "on", ">s3cr3t", *rules_of(page, user)
                )
        urls = {u: server.url.replace("://", f"://{u}:s3cr3t@") for u in ("pages", "copier")}
        yield {**urls, "default": server.url}


def test_a_redis_is_a_target_and_a_source(users: dict[str, str], tmp_path: Path) -> None:
    """Every kind of row goes in with its ledger, and out again: the server refuses nothing."""
    source, back, old = InMemory(), InMemory(), tmp_path / "old"
    write_all_kinds(source)
    seal(source, old)
    with closing(open_memory(users["copier"], timeout=5.0)) as target:
        right(copied(source, target, ledger=old, folder=tmp_path / "new"), source, target)
    with closing(open_memory(users["pages"], timeout=5.0)) as read:
        right(copied(read, back, ledger=tmp_path / "new"), source, back)
    with closing(redis.Redis.from_url(users["default"])) as client:
        assert client.execute_command("ACL", "LOG") == []


def test_a_postgresql_is_a_target_and_a_source(postgres: PostgresServer, tmp_path: Path) -> None:
    """The same, by a role that was let in as a writer, and one that was as a reader."""
    url, roles = postgres.url(schema="moved"), ("moved_writer", "moved_reader")
    with psycopg.connect(postgres.url(), autocommit=True) as owner:
        for role in roles:
            owner.execute(f"CREATE ROLE {role} LOGIN")
        migrate_memory(url, writer=roles[0], reader=roles[1])
        writing, reading = (url.replace("postgres@", f"{role}@") for role in roles)
        assert url not in (writing, reading)
        source, back, old = InMemory(), InMemory(), tmp_path / "old"
        write_all_kinds(source)
        seal(source, old)
        with closing(open_memory(writing)) as target, closing(open_memory(reading)) as read:
            right(copied(source, target, ledger=old, folder=tmp_path / "new"), source, target)
            right(copied(read, back, ledger=tmp_path / "new"), source, back)
        owner.execute("DROP SCHEMA moved CASCADE")
        for role in roles:
            owner.execute(f"DROP ROLE {role}")


def right(did: dict[str, Copied], source: AuditMemory, target: AuditMemory) -> None:
    assert {of.fault for of in did.values()} == {None}
    for tenant in source.tenants():
        assert raw(target, tenant) == raw(source, tenant)
