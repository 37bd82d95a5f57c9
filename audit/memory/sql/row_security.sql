-- Row security is on from here: a role sees the rows of the tenant that it is bound to, by policies that
-- `audit migrate` makes for each role (audit/memory/sql/roles.py), and appends none of another.
--
-- The functions that store run with the owner's rights and so would see everything. Each asks audit_may_store
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
-- Of one role, that writes there: what another lets the same login read is not for it to write.
CREATE OR REPLACE FUNCTION audit_may_store(tenant text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  RETURN pg_has_role(session_user, current_user, 'MEMBER') OR EXISTS (
    SELECT FROM audit_roles r
    WHERE r.writes AND (r.tenant_id IS NULL OR r.tenant_id = tenant)
      AND pg_has_role(session_user, to_regrole(quote_ident(r.role)), 'MEMBER'));
END $$;
CREATE OR REPLACE FUNCTION audit_stored() RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN NOT audit_may_store(NULL) THEN ARRAY(
    SELECT r.tenant_id FROM audit_roles r
    WHERE r.writes AND pg_has_role(session_user, to_regrole(quote_ident(r.role)), 'MEMBER')) END
$$;

-- A text of a row as a column holds it (audit/memory/sql/tables.py), whose JSON has been through audit_said.
CREATE OR REPLACE FUNCTION audit_is(held text, said jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN jsonb_typeof(said) IS DISTINCT FROM 'string' THEN held IS NULL
    WHEN held IS NULL THEN false
    WHEN octet_length(said #>> '{}') <= 1000 THEN held = said #>> '{}'
    ELSE right(held, 66) = '\#' || encode(sha256(convert_to(said #>> '{}', 'UTF8')), 'hex')
      AND starts_with(said #>> '{}', left(held, -66)) END
$$;

-- A row's JSON with a backslash doubled and a NUL as "\0", which no text can hold otherwise. An escaped
-- backslash stands aside meanwhile as a byte that no JSON has.
CREATE OR REPLACE FUNCTION audit_said(stored text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT replace(replace(replace(stored, '\\', E'\x01'), '\u0000', '\\0'), E'\x01', '\\\\')::jsonb
$$;

-- Only what every reader takes for a row, and for one of this tenant: two objects in one, and nothing that is
-- deeper or longer than readers bear, in a key that comes twice neither. Texts may say anything.
CREATE OR REPLACE FUNCTION audit_says(
  bytes bytea, tenant text, request text, kind text, skill_id text, outcome text, caller_persona text,
  trace_id text, task_id text
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  stored text;
  bare text;
  said jsonb;
BEGIN
  stored := convert_from(bytes, 'UTF8');
  bare := regexp_replace(stored, '"(?:[^"\\]|\\.)*"', '', 'g');
  IF stored::json IS NULL OR replace(stored, '\\', '') ~* '\\u005c' -- a second spelling of a backslash
    OR bare !~ '^\{[^][{}]*\{[^][{}]*\}[^][{}]*\{[^][{}]*\}[^][{}]*\}$' OR bare ~ '[0-9.eE+-]{20}'
  THEN RETURN false; END IF;
  said := audit_said(stored);
  RETURN said ?& '{schema,ts}' AND jsonb_typeof(said -> 'payload') = 'object'
    AND jsonb_typeof(said -> 'meta') = 'object' AND said ->> 'kind' ~ '^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$'
    AND audit_is(tenant, said #> '{payload,tenant_id}') AND audit_is(request, said #> '{payload,request_id}')
    AND audit_is(kind, said -> 'kind') AND audit_is(skill_id, said #> '{payload,skill_id}')
    AND audit_is(outcome, said #> '{payload,outcome}')
    AND audit_is(caller_persona, said #> '{payload,caller_persona}')
    AND audit_is(trace_id, said #> '{payload,trace_id}') AND audit_is(task_id, said #> '{meta,task_id}');
EXCEPTION WHEN OTHERS THEN
  RETURN false; -- no JSON, or no text; what is wrong with it would repeat it
END $$;
