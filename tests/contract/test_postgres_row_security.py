"""PostgreSQL with row security: a role that is bound to a tenant meets no other tenant's rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import errors

from audit.cli import audit
from audit.errors import MemoryUnavailableError, MemoryUnsuitableError
from audit.memory import AuditMemory, migrate_memory, open_memory
from audit.memory.base import Hold, Once, RowFilter, Stored
from audit.memory.sql.roles import OF_TENANTS
from audit.row import Reason
from demo.postgres import PostgresServer
from tests.support import (
    TENANT,
    check_every_row,
    completed,
    make_ending,
    make_identity,
    started,
)

OTHER = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
_NUMBERS = count(1)
#: Bound to TENANT: one that reads, one that writes; for all tenants: likewise; known to nobody.
ROLES = ("owner", "host", "flower", "auditor", "narrow_host", "stranger")


class Secured:
    """A memory whose owner is no superuser, with row security on and a role of each sort."""

    def __init__(self, server: PostgresServer, owner: str) -> None:
        self.schema = f"secured_{next(_NUMBERS)}"
        self._url = server.url(schema=self.schema)
        self._plain = server.url()
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"CREATE SCHEMA {self.schema} AUTHORIZATION {owner}")
        self.owner = owner
        self.migrate(row_security=True, writer="rs_host", reader="rs_flower")
        self.migrate(writer="rs_narrow_host", tenant=TENANT)
        self.migrate(reader="rs_auditor", tenant=TENANT)

    def url(self, role: str) -> str:
        return self._url.replace("postgres@", f"{role}@")

    def migrate(self, **wanted: object) -> list[str]:
        return migrate_memory(self.url(self.owner), **wanted)  # type: ignore[arg-type]

    def memory(self, role: str) -> AuditMemory:
        return open_memory(self.url(f"rs_{role}"), timeout=10)

    def line(self, role: str) -> psycopg.Connection:
        made = psycopg.connect(self._plain.replace("postgres@", f"{role}@"), autocommit=True)
        made.execute(f"SET search_path = {self.schema}")
        return made


@pytest.fixture(scope="module")
def roles(postgres: PostgresServer) -> Iterator[None]:
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        for role in ROLES:
            admin.execute(f"CREATE ROLE rs_{role} LOGIN")
        yield
        for role in ROLES:
            admin.execute(f"DROP OWNED BY rs_{role} CASCADE")
            admin.execute(f"DROP ROLE rs_{role}")


@pytest.fixture
def owner() -> str:
    return "rs_owner"


@pytest.fixture
def secured(postgres: PostgresServer, roles: None, owner: str) -> Iterator[Secured]:
    made = Secured(postgres, owner)
    yield made
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA {made.schema} CASCADE")


def fill(host: AuditMemory) -> str:
    """Both tenants have an invocation that ended with a death, one that runs, and a checkpoint."""
    for tenant in (TENANT, OTHER):
        identity = make_identity(tenant_id=tenant, task_id=f"task-of-{tenant}")
        once = Once(token=f"token-of-{tenant}", seconds=600)
        hold = Hold(token=f"tick-of-{tenant}", holder="h", seconds=600)
        host.emit(started(identity), once, hold)
        host.emit(completed(identity, make_ending(Reason.ABANDONED)))
        running = make_identity(tenant_id=tenant)
        host.emit(started(running))
        host.swap_sealed(tenant, None, b"note of " + tenant.encode(), "1-1")
    return running.request_id


def test_a_bound_reader_sees_one_tenant_by_every_way_to_read(secured: Secured) -> None:
    """Rows, pages, what runs, logs, deaths: nothing of another tenant, asked for it by name too."""
    host, auditor = secured.memory("host"), secured.memory("auditor")
    theirs = fill(host)
    assert {row.tenant_id for row in auditor.rows()} == {TENANT}
    assert {row.tenant_id for row in auditor.running()} == {TENANT}
    assert auditor.tenants() == [TENANT]
    assert auditor.open_page(None, 10).total == 1
    for wanted in (RowFilter(), RowFilter(tenant_id=OTHER), RowFilter(request_id=theirs)):
        page = auditor.page(wanted)
        assert {row.tenant_id for row in page.rows} == (
            {TENANT} if wanted == RowFilter() else set()
        )
    assert list(auditor.rows(tenant_id=OTHER)) == list(auditor.running(OTHER)) == []
    assert auditor.entries(OTHER, None, 10) == []
    assert len(auditor.entries(TENANT, None, 10)) == 3
    assert auditor.sealed(OTHER) is auditor.last_position(OTHER) is auditor.trimmed(OTHER) is None
    assert auditor.sealed(TENANT) is not None
    assert auditor.deaths(OTHER, f"task-of-{OTHER}/0") == 0
    assert auditor.deaths(TENANT, f"task-of-{TENANT}/0") == 1
    flower = secured.memory("flower")
    assert flower.tenants() == host.tenants() == sorted([TENANT, OTHER])
    assert len(list(flower.rows())) == len(check_every_row(host)) == 6


#: Conditions that fail where they meet a row of another tenant, and would tell of it.
PROBES = (
    "SELECT FROM audit_rows WHERE 1 / (tenant_id = '{tenant}')::int = 0",
    "SELECT 1 / (tenant_id = '{tenant}')::int FROM audit_invocations",
    "SELECT FROM audit_logs WHERE (CASE tenant_id WHEN '{tenant}' THEN '1' ELSE sealed::text END)"
    "::int = 0",
    "SELECT count(*) FROM audit_deaths d JOIN audit_rows r ON 1 / (d.tenant_id = '{tenant}')::int"
    " = 1",
)


def test_no_statement_shows_a_bound_role_another_tenant(secured: Secured) -> None:
    """Every table of the schema, what an error or a condition could give away, and statistics."""
    fill(secured.memory("host"))
    needles = (OTHER, OTHER.encode().hex())
    with secured.line("postgres") as admin:
        admin.execute("ANALYZE audit_rows, audit_invocations, audit_deaths")
        relations = admin.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace"
            " AND relkind IN ('r', 'p', 'v', 'm', 'f')", (secured.schema,)
        ).fetchall()  # fmt: skip
        assert any(OTHER in said(admin, f"TABLE {relation}") for (relation,) in relations)
        assert OTHER in said(admin, "SELECT most_common_vals FROM pg_stats")
    for role in ("rs_auditor", "rs_narrow_host"):
        with secured.line(role) as line:
            for (relation,) in relations:
                seen = said(line, f"SELECT t::text, to_jsonb(t) FROM {relation} t")  # noqa: S608
                assert not any(needle in seen for needle in needles)
            for probe in PROBES:
                line.execute(probe.format(tenant=TENANT).encode())
            assert OTHER not in said(line, "SELECT * FROM pg_stats")
            assert "row-level security" in said(line, "SET row_security = off; TABLE audit_rows")
    with secured.line("rs_stranger") as line:
        for (relation,) in relations:
            assert "permission denied" in said(line, f"TABLE {secured.schema}.{relation}")


def said(line: psycopg.Connection, statement: str) -> str:
    """All that a statement gives, its error too."""
    try:
        found = line.execute(statement.encode())
        return str(found.fetchall()) if found.description else ""
    except psycopg.Error as error:
        return str(error)


#: An ordinary role, and a superuser, whom no policy binds: his functions ask all the same.
@pytest.mark.parametrize("owner", ["rs_owner", "postgres"])
def test_a_bound_writer_appends_rows_of_its_tenant_alone(secured: Secured) -> None:
    """A refusal does not tell whether there is such an invocation; keeping is not for it."""
    host, narrow = secured.memory("host"), secured.memory("narrow_host")
    theirs = make_identity(tenant_id=OTHER)
    assert host.emit(started(theirs)) is Stored.NEW
    told = set()
    for row in (
        started(make_identity(tenant_id=OTHER)),
        started(theirs),
        completed(theirs),
        completed(theirs, make_ending(Reason.ABANDONED)),
    ):
        with pytest.raises(MemoryUnavailableError, match="another tenant") as caught:
            narrow.emit(row)
        told.add(str(caught.value))
    assert len(told) == 1
    own = make_identity()
    assert narrow.emit(started(own)) is narrow.emit(completed(own)) is Stored.NEW
    narrow.hold_lease("narrow-worker", 5)
    assert narrow.leases(["narrow-worker"]) == {"narrow-worker"}
    for attempt in (
        lambda: narrow.lead("keeper", "me", 5),
        lambda: narrow.swap_sealed(TENANT, None, b"note"),
        lambda: narrow.trim(TENANT, "99999999-0"),
    ):
        with pytest.raises(MemoryUnavailableError, match="permission denied"):
            attempt()
    assert [row.kind for row in host.running(OTHER)] == ["skill.invoked_started"]
    assert len(check_every_row(host)) == 3


def test_a_function_that_forgets_to_ask_is_stopped(postgres: PostgresServer, roles: None) -> None:
    """The owner's own policy asks whose session it is; for a superuser's functions none can."""
    secured = Secured(postgres, "rs_owner")
    with secured.line("rs_owner") as owner, secured.line("rs_narrow_host") as narrow:
        for name, does in (
            ("forgetful", f"INSERT INTO audit_logs VALUES ('{OTHER}') RETURNING 1"),  # noqa: S608
            ("nosy", "SELECT count(*) FROM audit_invocations"),
        ):
            owner.execute(
                f"CREATE FUNCTION {name}() RETURNS SETOF bigint LANGUAGE sql SECURITY DEFINER"
                f" SET search_path FROM CURRENT AS $$ {does} $$"
            )
            owner.execute(f"GRANT EXECUTE ON FUNCTION {name} TO rs_narrow_host")
        secured.memory("host").emit(started(make_identity(tenant_id=OTHER)))
        assert narrow.execute("SELECT * FROM nosy()").fetchall() == [(0,)]
        with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
            narrow.execute("SELECT * FROM forgetful()")
        assert owner.execute("SELECT * FROM nosy()").fetchall() == [(1,)]
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA {secured.schema} CASCADE")


def test_row_security_is_turned_on_and_off_at_will(secured: Secured) -> None:
    """Again changes nothing; without it, the bound have no rights. Open connections keep to it."""
    host, auditor, narrow = map(secured.memory, ("host", "auditor", "narrow_host"))
    fill(host)
    assert len(list(auditor.rows())) == 3
    assert secured.migrate(row_security=True) == secured.migrate() == []
    [told] = secured.migrate(row_security=False)
    assert "rs_auditor, rs_narrow_host" in told
    assert secured.migrate(row_security=False) == []
    for attempt in (
        lambda: list(auditor.rows()),
        lambda: narrow.emit(started(make_identity())),
    ):
        with pytest.raises(MemoryUnavailableError, match="permission denied"):
            attempt()
    assert host.emit(started(make_identity())) is Stored.NEW
    assert len(list(secured.memory("flower").rows())) == 7
    secured.migrate(row_security=True)
    assert {row.tenant_id for row in auditor.rows()} == {TENANT}
    with pytest.raises(MemoryUnavailableError, match="another tenant"):
        narrow.emit(started(make_identity(tenant_id=OTHER)))
    assert narrow.emit(started(make_identity())) is Stored.NEW
    with secured.line("postgres") as admin:
        policies = admin.execute(
            "SELECT count(*) FROM pg_policies WHERE schemaname = %s", (secured.schema,)
        ).fetchone()
    assert policies == (len(OF_TENANTS) * 5,)


#: A role that has nothing to do with this memory.
ROLE, GRANT = "CREATE ROLE rs_elsewhere", "GRANT rs_elsewhere TO rs_stranger"


def test_a_role_that_sees_more_cannot_be_bound(secured: Secured, postgres: PostgresServer) -> None:
    """Nor one while row security is off. One that is bound anew sees the new tenant alone."""
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        for grant, revoke in (
            ("ALTER ROLE rs_stranger SUPERUSER", "ALTER ROLE rs_stranger NOSUPERUSER"),
            ("ALTER ROLE rs_stranger BYPASSRLS", "ALTER ROLE rs_stranger NOBYPASSRLS"),
            ("GRANT rs_flower TO rs_stranger", "REVOKE rs_flower FROM rs_stranger"),
            (f"{ROLE} SUPERUSER; {GRANT}", "DROP ROLE rs_elsewhere"),
            (f"{ROLE} BYPASSRLS; {GRANT}", "DROP ROLE rs_elsewhere"),
        ):
            admin.execute(grant.encode())
            with pytest.raises(MemoryUnsuitableError, match="cannot be bound"):
                secured.migrate(reader="rs_stranger", tenant=TENANT)
            admin.execute(revoke.encode())
    fill(secured.memory("host"))
    secured.migrate(reader="rs_narrow_host", tenant=OTHER)
    moved = secured.memory("narrow_host")
    assert {row.tenant_id for row in moved.rows()} == {OTHER}
    with pytest.raises(MemoryUnavailableError, match="permission denied"):
        moved.emit(started(make_identity(tenant_id=OTHER)))
    secured.migrate(row_security=False)
    with pytest.raises(MemoryUnsuitableError, match="--row-security"):
        secured.migrate(reader="rs_stranger", tenant=TENANT)


def test_the_command_binds_a_role(secured: Secured) -> None:
    """And says so; a tenant without a role is wrong usage."""

    def ran(*arguments: str) -> tuple[int, str]:
        command = ["--memory", secured.url(secured.owner), "migrate", *arguments]
        done = CliRunner().invoke(audit, command, obj=SimpleNamespace())
        return done.exit_code, done.output

    assert ran("--tenant", TENANT)[0] == 2
    code, told = ran("--row-security", "--reader", "rs_stranger", "--tenant", OTHER)
    assert (code, f"only those of tenant {OTHER}" in told) == (0, True), told
    fill(secured.memory("host"))
    assert {row.tenant_id for row in secured.memory("stranger").rows()} == {OTHER}


def test_whoever_may_only_read_a_tenant_appends_nothing_of_it(
    secured: Secured, postgres: PostgresServer
) -> None:
    """Nor does a login that is in a writer's role of another tenant as well."""
    secured.migrate(reader="rs_auditor", tenant=OTHER)
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute("GRANT rs_narrow_host, rs_auditor TO rs_stranger")
        stranger = secured.memory("stranger")
        assert stranger.emit(started(make_identity())) is Stored.NEW
        with pytest.raises(MemoryUnavailableError, match="another tenant"):
            stranger.emit(started(make_identity(tenant_id=OTHER)))
        secured.migrate(reader="rs_auditor")
        with pytest.raises(MemoryUnavailableError, match="another tenant"):
            stranger.emit(started(make_identity(tenant_id=OTHER)))
        secured.migrate(writer="rs_narrow_host", tenant=OTHER)
        assert stranger.emit(started(make_identity(tenant_id=OTHER))) is Stored.NEW
        admin.execute("REVOKE rs_narrow_host, rs_auditor FROM rs_stranger")


def test_a_wider_role_is_not_let_in_around_a_bound_one(
    secured: Secured, postgres: PostgresServer
) -> None:
    """Whichever comes first, and where row security was off meanwhile; nothing is done then."""
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute("GRANT rs_stranger TO rs_auditor")
        for wider in ({"reader": "rs_stranger"}, {"writer": "rs_stranger", "tenant": OTHER}):
            with pytest.raises(MemoryUnsuitableError, match="rs_auditor cannot be bound"):
                secured.migrate(**wider)
        with secured.line("rs_stranger") as stranger:
            assert "permission denied" in said(stranger, f"TABLE {secured.schema}.audit_rows")
        secured.migrate(reader="rs_stranger", tenant=TENANT)
        secured.migrate(row_security=False)
        secured.migrate(reader="rs_stranger")
        with pytest.raises(MemoryUnsuitableError, match="rs_auditor cannot be bound"):
            secured.migrate(row_security=True)
        admin.execute("REVOKE rs_stranger FROM rs_auditor")
    assert secured.migrate(row_security=True) == ["row security is on"]


#: One that has run out and one that has not, of each tenant.
_TOKENS = """
INSERT INTO audit_tokens SELECT t, k, 1, u FROM unnest(%s::text[]) t,
  (VALUES ('old', 1), ('new', 9000000000000000)) v (k, u)
"""
_TICKS = "INSERT INTO audit_ticks SELECT tenant_id, token, 'h', until FROM audit_tokens"


@pytest.mark.parametrize("owner", ["rs_owner", "postgres"])
def test_a_bound_writer_sweeps_up_behind_its_own_tenant(secured: Secured) -> None:
    """With its leases, as others do; nothing of another tenant, and it is not told how much."""
    with secured.line("postgres") as admin, secured.line("rs_narrow_host") as narrow:
        admin.execute(_TOKENS, ([TENANT, OTHER],))
        admin.execute(_TICKS)
        secured.memory("narrow_host").hold_lease("narrow-worker", 5)
        for table in ("audit_tokens", "audit_ticks"):
            left = admin.execute(f"SELECT tenant_id, token FROM {table}").fetchall()  # noqa: S608
            assert sorted(left) == sorted([(TENANT, "new"), (OTHER, "new"), (OTHER, "old")])
        assert narrow.execute("SELECT audit_forget(10, 0)").fetchone() == (0,)
        secured.memory("host").hold_lease("worker", 5)
        old = "SELECT FROM audit_tokens WHERE token = 'old'"
        assert admin.execute(old).fetchall() == []
