-- Row security is on from here: a role sees the rows of the tenant that it is bound to, by policies that
-- `audit migrate` makes for each role (audit/memory/sql/roles.py), and appends none of another.
--
-- The functions that store run with the owner's rights and so would see everything. Each asks audit_may
-- first, of the role that has logged in, whatever it has turned into since; the policy of the owner asks once
-- more, for a function that forgot. An owner who is a superuser is under no policy, the functions ask all
-- the same.

CREATE OR REPLACE FUNCTION audit_may(tenant text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  RETURN pg_has_role(session_user, current_user, 'MEMBER') OR EXISTS (
    SELECT FROM audit_roles r
    WHERE (r.tenant_id IS NULL OR r.tenant_id = tenant)
      AND pg_has_role(session_user, to_regrole(quote_ident(r.role)), 'MEMBER'));
END $$;
