"""Who may do what in a memory in PostgreSQL, and whose rows they see.

What is guaranteed, once a migration has turned row security on: a role that is bound to a tenant
sees rows, invocations, deaths and checkpoints of that tenant alone, whatever it asks, and a writer
that is bound appends rows of that tenant alone. The database holds it, by policies and in the
functions that store. A role of which nothing is known sees nothing. Where row security is turned
off, roles that were bound lose their rights: never does one of them see more for it.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import psycopg
from psycopg import sql

from audit.errors import MemoryUnsuitableError
from audit.memory.sql.schema import ddl
from audit.memory.sql.tables import written

#: Tables with a tenant in every line: those that row security is for.
OF_TENANTS: Final = (
    "audit_rows",
    "audit_invocations",
    "audit_deaths",
    "audit_logs",
    "audit_tokens",
    "audit_ticks",
)
#: What a role may do, ``{0}`` being the schema and ``{1}`` the role. All by name: of what is not
#: named here, a month's part of the rows say, nobody has any right. A row is changed or removed by
#: nobody.
_READER: Final = (
    "GRANT USAGE ON SCHEMA {0} TO {1}",
    "GRANT SELECT ON {0}.audit_settings, {0}.audit_rows, {0}.audit_invocations, {0}.audit_deaths,"
    " {0}.audit_logs, {0}.audit_leases, {0}.audit_leaders TO {1}",
    "GRANT EXECUTE ON FUNCTION {0}.audit_now(), {0}.audit_horizon() TO {1}",
)
#: Of one tenant. Leases are nobody's in particular; leading, sealing and trimming are for all.
_BOUND_WRITER: Final = (
    *_READER,
    "GRANT INSERT, UPDATE ON {0}.audit_leases TO {1}",
    "GRANT EXECUTE ON FUNCTION {0}.audit_emit, {0}.audit_forget TO {1}",
)
_WRITER: Final = (
    *_BOUND_WRITER,
    "GRANT INSERT, UPDATE ON {0}.audit_leaders TO {1}",
    "GRANT EXECUTE ON FUNCTION {0}.audit_swap_sealed, {0}.audit_trim TO {1}",
)
_NOTHING: Final = (
    "REVOKE ALL ON ALL TABLES IN SCHEMA {0} FROM {1}",
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {0} FROM {1}",
)
_SECURED: Final = "SELECT relrowsecurity FROM pg_class WHERE oid = 'audit_rows'::regclass"
#: With whose rights the functions run, whoever migrates.
_OWNER: Final = "SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE oid = to_regproc('audit_emit')"
_LET_IN: Final = """
INSERT INTO audit_roles AS r VALUES (%s, %s, %s) ON CONFLICT (role) DO UPDATE
SET writes = excluded.writes OR (r.writes AND r.tenant_id IS NOT DISTINCT FROM excluded.tenant_id),
    tenant_id = excluded.tenant_id
"""
#: Those that are still there.
_KNOWN: Final = """
SELECT role, tenant_id, writes FROM audit_roles
WHERE to_regrole(quote_ident(role)) IS NOT NULL ORDER BY role
"""
#: A bound role that would see more than its one tenant.
_GOES_PAST: Final = """
SELECT b.role FROM audit_roles b JOIN pg_roles p ON p.rolname = b.role, pg_class c
WHERE b.tenant_id IS NOT NULL AND c.oid = 'audit_rows'::regclass AND (
  pg_has_role(p.oid, c.relowner, 'MEMBER') OR EXISTS (
    SELECT FROM pg_roles x
    WHERE (x.rolsuper OR x.rolbypassrls) AND pg_has_role(p.oid, x.oid, 'MEMBER')) OR EXISTS (
    SELECT FROM audit_roles r
    WHERE r.role <> b.role AND r.tenant_id IS DISTINCT FROM b.tenant_id
      AND pg_has_role(p.oid, to_regrole(quote_ident(r.role)), 'MEMBER')))
ORDER BY b.role LIMIT 1
"""
_MAY_ALL: Final = """
CREATE OR REPLACE FUNCTION audit_may(tenant text) RETURNS boolean LANGUAGE sql IMMUTABLE AS
$$ SELECT true $$;
CREATE OR REPLACE FUNCTION audit_may_store(tenant text) RETURNS boolean LANGUAGE sql IMMUTABLE AS
$$ SELECT true $$;
CREATE OR REPLACE FUNCTION audit_stored() RETURNS text[] LANGUAGE sql IMMUTABLE AS
$$ SELECT NULL::text[] $$;
CREATE OR REPLACE FUNCTION audit_says(
  bytes bytea, tenant text, request text, kind text, skill_id text, outcome text,
  caller_persona text, trace_id text, task_id text
) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
"""

Connection = psycopg.Connection[Any]


class Roles:
    """The roles of one memory.

    Args:
        connection: of the owner, in a transaction, with the memory's schema first in its path.
        schema: that schema.
    """

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    def let_in(self, role: str, *, writes: bool, tenant: str | None) -> str:
        """Give a role its rights; what was done.

        Raises:
            MemoryUnsuitableError: it cannot be bound to a tenant, or one that is would see more
                by it. The transaction is to be rolled back then.
        """
        if tenant is not None and not self._is_secured():
            raise MemoryUnsuitableError(
                f"{role} cannot be bound to a tenant while row security is off: add --row-security"
            )
        known = (role, None if tenant is None else written(tenant), writes)
        self._connection.execute(_LET_IN, known)
        self._apply()
        whose = "" if tenant is None else f", and of rows only those of tenant {tenant}"
        return f"{role} may use the schema {self._schema} now{whose}"

    def secure(self) -> list[str]:
        """Turn row security on; what was done, nothing where it was."""
        if self._is_secured():
            return []
        self._connection.execute(ddl("row_security").encode())
        self._connection.execute("REVOKE EXECUTE ON FUNCTION audit_is, audit_said FROM PUBLIC")
        [(owner,)] = self._connection.execute(_OWNER).fetchall()
        for table in OF_TENANTS:
            self._do("ALTER TABLE {0}.{1} ENABLE ROW LEVEL SECURITY", table)
            self._do("ALTER TABLE {0}.{1} FORCE ROW LEVEL SECURITY", table)
            self._do(
                "CREATE POLICY audit_owner ON {0}.{1} TO {2}"
                " USING (audit_may(tenant_id)) WITH CHECK (audit_may_store(tenant_id))",
                table, sql.Identifier(owner),
            )  # fmt: skip
        self._apply()
        return ["row security is on"]

    def release(self) -> list[str]:
        """Turn row security off; what was done, nothing where it was off."""
        if not self._is_secured():
            return []
        for table in OF_TENANTS:
            self._drop_policies(table)
            self._do("ALTER TABLE {0}.{1} NO FORCE ROW LEVEL SECURITY", table)
            self._do("ALTER TABLE {0}.{1} DISABLE ROW LEVEL SECURITY", table)
        self._connection.execute(_MAY_ALL)
        self._apply()
        bound = [role for role, tenant, _ in self._known() if tenant is not None]
        lost = f"; without rights now: {', '.join(bound)}" if bound else ""
        return [f"row security is off{lost}"]

    def _is_secured(self) -> bool:
        found = self._connection.execute(_SECURED).fetchone()
        return found is not None and bool(found[0])

    def _known(self) -> list[tuple[str, str | None, bool]]:
        return self._connection.execute(_KNOWN).fetchall()

    def _apply(self) -> None:
        """Give all roles what is theirs, no more: again is safe."""
        secured, known = self._is_secured(), self._known()
        for role, tenant, writes in known:
            rights = _READER if not writes else _WRITER if tenant is None else _BOUND_WRITER
            for right in (*_NOTHING, *(rights if tenant is None or secured else ())):
                self._do(right, role)
        if secured:
            self._insist_on_bounds()
            for table in OF_TENANTS:
                self._make_policies(table, known)

    def _make_policies(self, table: str, known: list[tuple[str, str | None, bool]]) -> None:
        self._drop_policies(table, but="audit_owner")
        for role, tenant, _ in known:
            # Constants, which the planner reads: one tenant's rows are found by their index.
            rule = sql.SQL("true") if tenant is None else _is_of(tenant)
            name = f"audit_{hashlib.sha256(role.encode()).hexdigest()[:32]}"
            self._do(
                "CREATE POLICY {2} ON {0}.{1} FOR SELECT TO {3} USING ({4})",
                table, sql.Identifier(name), sql.Identifier(role), rule,
            )  # fmt: skip

    def _drop_policies(self, table: str, *, but: str = "") -> None:
        names = "SELECT polname FROM pg_policy WHERE polrelid = %s::regclass AND polname <> %s"
        for (name,) in self._connection.execute(names, (table, but)).fetchall():
            self._do("DROP POLICY {2} ON {0}.{1}", table, sql.Identifier(name))

    def _insist_on_bounds(self) -> None:
        """Of all roles each time: one that is let in may let another see more."""
        found = self._connection.execute(_GOES_PAST).fetchone()
        if found is not None:
            raise MemoryUnsuitableError(
                f"{found[0]} cannot be bound to a tenant: it is a superuser, has BYPASSRLS, or is a"
                " member of a role that is, has or sees more; take a role that is none of it"
            )

    def _do(self, statement: str, named: str, *more: sql.Composable) -> None:
        made = sql.SQL(statement).format(sql.Identifier(self._schema), sql.Identifier(named), *more)
        self._connection.execute(made)


def _is_of(tenant: str) -> sql.Composable:
    return sql.SQL("tenant_id = {}").format(sql.Literal(tenant))
