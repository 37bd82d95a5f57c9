-- Version 1 of the audit memory in PostgreSQL 14 or later. `audit migrate` runs this in one transaction, in a
-- schema of its own and as the schema's owner.
--
-- A row is stored by one call of audit_emit, in a transaction of its own. Its position is "TURN-MINOR":
-- TURN follows from that transaction's id, MINOR is the server's time in microseconds. Whoever reads only
-- what lies below the oldest transaction that still runs (audit_horizon) never sees a row come in late.
--
-- Close once: the primary key of audit_invocations decides which start counts, and a row lock on it which
-- completion. The unique key of audit_rows holds the same for the rows themselves, where it has no partitions.
--
-- Some functions say yes and cost nothing until a migration replaces them: audit_may, audit_may_store,
-- audit_stored and audit_says (row_security.sql), and audit_month (months.sql).

CREATE TABLE audit_settings (
  only_one  boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  version   integer NOT NULL,
  -- Added to transaction ids. Raised by `audit migrate` where the rows came from another cluster.
  ahead     bigint NOT NULL DEFAULT 0
);
INSERT INTO audit_settings (version) VALUES (1);

CREATE TABLE audit_rows (
  turn            bigint NOT NULL,
  minor           bigint NOT NULL,
  tenant_id       text NOT NULL,
  request_id      text NOT NULL,
  -- 0 started, 1 completed, 2 refused or a row of the trail itself, from 3 on late ones
  slot            integer NOT NULL CHECK (slot >= 0),
  moment          bigint,
  kind            text,
  skill_id        text,
  outcome         text,
  caller_persona  text,
  trace_id        text,
  task_id         text,
  stored          bytea NOT NULL,
  PRIMARY KEY (turn, minor),
  UNIQUE (request_id, tenant_id, slot)
);
CREATE INDEX audit_rows_of_tenant ON audit_rows (tenant_id, turn, minor);
CREATE INDEX audit_rows_of_trace ON audit_rows (trace_id, turn, minor);
CREATE INDEX audit_rows_of_task ON audit_rows (task_id, turn, minor) WHERE task_id IS NOT NULL;
-- Of what did not succeed: the index of the tenant does for all else, and most emits pay nothing for this one.
CREATE INDEX audit_rows_of_outcome ON audit_rows (tenant_id, outcome, turn, minor) WHERE outcome <> 'success';

CREATE TABLE audit_invocations (
  tenant_id   text NOT NULL,
  request_id  text NOT NULL,
  -- o started, c completed, t a tombstone, r refused or a row of the trail itself
  state       "char" NOT NULL CHECK (state IN ('o', 'c', 't', 'r')),
  replayed    boolean NOT NULL DEFAULT false,
  turn        bigint,
  minor       bigint,
  first       bytea,
  last        bytea,
  late        bytea[] NOT NULL DEFAULT '{}',
  PRIMARY KEY (request_id, tenant_id)
) WITH (fillfactor = 80);
CREATE INDEX audit_invocations_open ON audit_invocations (tenant_id, turn, minor) WHERE state = 'o';

CREATE TABLE audit_tokens (
  tenant_id  text NOT NULL,
  token      text NOT NULL,
  -- Of the transaction that started first under it: two may start in the same microsecond.
  turn       bigint NOT NULL,
  until      bigint NOT NULL,
  PRIMARY KEY (tenant_id, token)
);
CREATE INDEX audit_tokens_until ON audit_tokens (until);

CREATE TABLE audit_ticks (
  tenant_id  text NOT NULL,
  token      text NOT NULL,
  holder     text NOT NULL,
  until      bigint NOT NULL,
  PRIMARY KEY (tenant_id, token)
);
CREATE INDEX audit_ticks_until ON audit_ticks (until);

CREATE TABLE audit_deaths (
  tenant_id  text NOT NULL,
  message    text NOT NULL,
  deaths     bigint NOT NULL,
  PRIMARY KEY (tenant_id, message)
);

CREATE TABLE audit_leases (worker text PRIMARY KEY, until bigint NOT NULL, seen bigint NOT NULL);
CREATE TABLE audit_leaders (role text PRIMARY KEY, holder text NOT NULL, until bigint NOT NULL);
CREATE TABLE audit_logs (
  tenant_id        text PRIMARY KEY,
  sealed           bytea,
  sealed_position  text,
  trimmed          text,
  last_position    text
);

CREATE FUNCTION audit_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Roles that a migration has let in; which tenant each is bound to, null for all of them.
CREATE TABLE audit_roles (role text PRIMARY KEY, tenant_id text, writes boolean NOT NULL);

-- Whether this session may see rows of a tenant, and whether it may store them; with null those of all.
CREATE FUNCTION audit_may(tenant text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
CREATE FUNCTION audit_may_store(tenant text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
-- The tenants whose rows this session may store, null for all.
CREATE FUNCTION audit_stored() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$ SELECT NULL::text[] $$;
-- Whether a row's bytes say the same as its columns.
CREATE FUNCTION audit_says(
  bytes bytea, tenant text, request text, kind text, skill_id text, outcome text, caller_persona text,
  trace_id text, task_id text
) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
-- Sees to it that there is a place for rows that are stored at a moment.
CREATE FUNCTION audit_month(moment bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;

-- Every row whose turn is smaller is there, or never will be.
CREATE FUNCTION audit_horizon() RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS
$$ SELECT ahead + pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM audit_settings $$;

CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND current_setting('audit.trimming', true) = 'on' THEN RETURN OLD; END IF;
  RAISE EXCEPTION 'the audit memory is append-only: % of % is refused', TG_OP, TG_TABLE_NAME;
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_rows
  FOR EACH ROW EXECUTE FUNCTION audit_append_only();
CREATE TRIGGER audit_append_only_whole BEFORE TRUNCATE ON audit_rows
  FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only();

-- The first place in a row's canonical JSON that says WAS says IS instead. Both are keys with their values in
-- a spelling that no text inside the row can have, because there the quotes are escaped.
CREATE FUNCTION audit_reworded(stored bytea, was bytea, is_ bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE position(was IN stored) WHEN 0 THEN stored
    ELSE overlay(stored PLACING is_ FROM position(was IN stored) FOR length(was)) END
$$;
CREATE FUNCTION audit_as_replay(stored bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT audit_reworded(stored, '"redelivered":false'::bytea, '"redelivered":true'::bytea)
$$;
CREATE FUNCTION audit_as_late(stored bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT audit_reworded(
    stored, '"kind":"skill.invoked_completed"'::bytea, '"kind":"skill.invoked_late"'::bytea)
$$;

-- Stores one row of one invocation, or says why not.
--
-- what: started | completed | settled | refused. The arguments from moment on are the row's columns. dead: the
-- message whose worker died, or null. token, tick: null where the row does not ask.
--
-- Raises 40001 where another call for the same invocation got ahead: the caller calls again.
CREATE FUNCTION audit_emit(
  what text, tenant text, request text, bytes bytea, moment bigint, kind text, skill_id text,
  outcome text, caller_persona text, trace_id text, task_id text, dead text,
  token text, remembered bigint, tick text, holder text, taken bigint
) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
  found_one audit_invocations%ROWTYPE;
  known boolean;
  now_ bigint := audit_now();
  turn_ bigint;
  slot_ integer;
  seen_turn bigint;
  taken_by text;
  seen boolean := false;
  answer text := 'new';
  turn_had xid8;
BEGIN
  IF NOT audit_may_store(tenant) THEN RAISE SQLSTATE '42501' USING MESSAGE = 'another tenant is refused'; END IF;
  IF NOT audit_says(bytes, tenant, request, kind, skill_id, outcome, caller_persona, trace_id, task_id) THEN
    RAISE SQLSTATE '42501' USING MESSAGE = 'a row that does not say what its columns say is refused';
  END IF;
  -- First of all, while this call holds no lock yet.
  IF NOT audit_month(now_) THEN RAISE SQLSTATE '40001'; END IF;
  turn_had := pg_current_xact_id_if_assigned();
  -- What nearly every call is, in one statement each: a start that nobody knows yet, and the first completion.
  -- All others go on below, statement by statement.
  IF what = 'started' AND token IS NULL AND tick IS NULL THEN
    WITH new_one AS (
      INSERT INTO audit_invocations (tenant_id, request_id, state, turn, minor, first)
        VALUES (tenant, request, 'o', (SELECT ahead FROM audit_settings) + pg_current_xact_id()::text::bigint,
          now_, sha256(bytes))
        ON CONFLICT DO NOTHING RETURNING turn)
    INSERT INTO audit_rows SELECT new_one.turn, now_, tenant, request, 0, moment, kind, skill_id, outcome,
      caller_persona, trace_id, task_id, bytes FROM new_one;
    IF FOUND THEN RETURN 'new'; END IF;
  ELSIF what = 'completed' OR what = 'settled' THEN
    -- The state as text: the planner would take the index of the open ones for it, while few are open as far
    -- as it knows, and that holds whatever was closed since the oldest transaction that still runs.
    WITH closed AS (
      UPDATE audit_invocations i
        SET state = 'c', last = sha256(CASE WHEN i.replayed THEN audit_as_replay(bytes) ELSE bytes END)
        WHERE i.request_id = request AND i.tenant_id = tenant AND i.state::text = 'o'
        RETURNING i.replayed)
    INSERT INTO audit_rows SELECT (SELECT ahead FROM audit_settings) + pg_current_xact_id()::text::bigint, now_,
      tenant, request, 1, moment, kind, skill_id, outcome, caller_persona, trace_id, task_id,
      CASE WHEN closed.replayed THEN audit_as_replay(bytes) ELSE bytes END FROM closed;
    IF FOUND THEN
      IF dead IS NOT NULL THEN
        INSERT INTO audit_deaths AS d VALUES (tenant, dead, 1)
          ON CONFLICT ON CONSTRAINT audit_deaths_pkey DO UPDATE SET deaths = d.deaths + 1;
      END IF;
      RETURN 'new';
    END IF;
    -- It waited for another completion, and has its turn from before that one: a late row would stand before
    -- the row that it is late to. The next call has a later turn. (Not where this call has just made a month,
    -- which would be undone again and again.)
    IF pg_current_xact_id_if_assigned() IS DISTINCT FROM turn_had THEN RAISE SQLSTATE '40001'; END IF;
  END IF;

  SELECT * INTO found_one FROM audit_invocations i
    WHERE i.request_id = request AND i.tenant_id = tenant FOR UPDATE;
  known := FOUND;

  IF what = 'started' THEN
    IF known THEN
      IF found_one.state = 't' THEN RETURN 'tombstone'; END IF;
      IF found_one.state = 'r' THEN RETURN 'was_refused'; END IF;
      IF found_one.first = sha256(bytes) THEN RETURN 'repeated'; END IF;
      IF token IS NOT NULL AND found_one.first = sha256(audit_as_replay(bytes)) THEN
        RETURN 'replayed';
      END IF;
      RETURN 'second_started_row';
    END IF;
    IF tick IS NOT NULL THEN
      INSERT INTO audit_ticks AS t VALUES (tenant, tick, holder, now_ + taken * 1000000)
        ON CONFLICT ON CONSTRAINT audit_ticks_pkey DO UPDATE
        SET holder = excluded.holder, until = excluded.until
        WHERE t.until <= audit_now() OR t.holder = excluded.holder
        RETURNING t.holder INTO taken_by;
      IF NOT FOUND THEN RETURN 'tick_taken'; END IF;
    END IF;
    IF token IS NOT NULL THEN
      SELECT ahead + pg_current_xact_id()::text::bigint INTO STRICT turn_ FROM audit_settings;
      INSERT INTO audit_tokens AS t VALUES (tenant, token, turn_, now_ + remembered * 1000000)
        ON CONFLICT ON CONSTRAINT audit_tokens_pkey DO UPDATE
        SET turn = CASE WHEN t.until > audit_now() THEN t.turn ELSE excluded.turn END,
            until = greatest(t.until, excluded.until)
        RETURNING t.turn INTO seen_turn;
      seen := seen_turn <> turn_;
      IF seen THEN
        bytes := audit_as_replay(bytes);
        answer := 'replayed';
      END IF;
    END IF;
    slot_ := 0;

  ELSIF what = 'refused' THEN
    IF known THEN
      IF found_one.state <> 'r' THEN RETURN 'second_started_row'; END IF;
      IF found_one.first = sha256(bytes) THEN RETURN 'repeated'; END IF;
      RETURN 'was_refused';
    END IF;
    slot_ := 2;

  ELSIF NOT known OR found_one.state = 't' THEN
    IF what = 'completed' THEN
      RETURN CASE WHEN known THEN 'tombstone' ELSE 'no_started_row' END;
    END IF;
    IF NOT known THEN
      INSERT INTO audit_invocations (tenant_id, request_id, state) VALUES (tenant, request, 't')
        ON CONFLICT DO NOTHING;
      IF NOT FOUND THEN RAISE SQLSTATE '40001'; END IF;
    END IF;
    RETURN 'barred';

  ELSIF found_one.state = 'r' THEN
    RETURN CASE what WHEN 'settled' THEN 'settled' ELSE 'was_refused' END;

  ELSIF found_one.state = 'o' THEN
    RAISE SQLSTATE '40001'; -- it started between the two looks

  ELSE
    IF found_one.replayed THEN bytes := audit_as_replay(bytes); END IF;
    IF found_one.last = sha256(bytes) THEN RETURN 'repeated'; END IF;
    IF what = 'settled' THEN RETURN 'settled'; END IF;
    bytes := audit_as_late(bytes);
    IF sha256(bytes) = ANY (found_one.late) THEN RETURN 'late'; END IF;
    UPDATE audit_invocations i SET late = i.late || sha256(bytes)
      WHERE i.request_id = request AND i.tenant_id = tenant;
    slot_ := 3 + cardinality(found_one.late);
    kind := 'skill.invoked_late';
    answer := 'late';
  END IF;

  SELECT ahead + pg_current_xact_id()::text::bigint INTO STRICT turn_ FROM audit_settings;
  IF slot_ = 0 OR slot_ = 2 THEN
    INSERT INTO audit_invocations (tenant_id, request_id, state, replayed, turn, minor, first)
      VALUES (tenant, request, CASE slot_ WHEN 0 THEN 'o' ELSE 'r' END, seen, turn_, now_, sha256(bytes))
      ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RAISE SQLSTATE '40001'; END IF;
  END IF;
  INSERT INTO audit_rows VALUES (turn_, now_, tenant, request, slot_, moment, kind, skill_id, outcome,
    caller_persona, trace_id, task_id, bytes);
  RETURN answer;
END $$;

-- Puts NEW_ in the place of OLD_; whether OLD_ was there.
CREATE FUNCTION audit_swap_sealed(tenant text, old_ bytea, new_ bytea, position_ text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  IF NOT audit_may_store(tenant) THEN RAISE SQLSTATE '42501' USING MESSAGE = 'another tenant is refused'; END IF;
  INSERT INTO audit_logs (tenant_id) VALUES (tenant) ON CONFLICT DO NOTHING;
  UPDATE audit_logs SET sealed = new_, sealed_position = coalesce(position_, sealed_position)
    WHERE tenant_id = tenant AND sealed IS NOT DISTINCT FROM old_;
  RETURN FOUND;
END $$;

-- Removes at most MOST rows before a position, the oldest first, none from the oldest open invocation on; how
-- many went.
CREATE FUNCTION audit_trim(tenant text, before_turn bigint, before_minor bigint, most integer)
RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  count_ integer;
  last_turn bigint;
  last_minor bigint;
  newest record;
  horizon bigint := audit_horizon();
BEGIN
  IF NOT audit_may_store(tenant) THEN RAISE SQLSTATE '42501' USING MESSAGE = 'another tenant is refused'; END IF;
  -- Two trims at once: the second goes on where the first has stopped.
  INSERT INTO audit_logs (tenant_id) VALUES (tenant) ON CONFLICT DO NOTHING;
  PERFORM 1 FROM audit_logs l WHERE l.tenant_id = tenant FOR UPDATE;
  SELECT i.turn, i.minor INTO newest FROM audit_invocations i
    WHERE i.tenant_id = tenant AND i.state = 'o' ORDER BY i.turn, i.minor LIMIT 1;
  IF FOUND AND (newest.turn, newest.minor) < (before_turn, before_minor) THEN
    before_turn := newest.turn;
    before_minor := newest.minor;
  END IF;
  IF horizon < before_turn THEN before_turn := horizon; before_minor := 0; END IF;

  SELECT r.turn, r.minor INTO newest FROM audit_rows r WHERE r.tenant_id = tenant AND r.turn < horizon
    ORDER BY r.turn DESC, r.minor DESC LIMIT 1;
  PERFORM set_config('audit.trimming', 'on', true);
  WITH gone AS (
    DELETE FROM audit_rows d USING (
      SELECT r.turn, r.minor FROM audit_rows r
      WHERE r.tenant_id = tenant AND (r.turn, r.minor) < (before_turn, before_minor)
      ORDER BY r.turn, r.minor LIMIT most) AS old_ones
    WHERE d.turn = old_ones.turn AND d.minor = old_ones.minor RETURNING d.turn, d.minor)
  SELECT count(*), (array_agg(gone.turn ORDER BY gone.turn DESC, gone.minor DESC))[1],
    (array_agg(gone.minor ORDER BY gone.turn DESC, gone.minor DESC))[1]
    INTO count_, last_turn, last_minor FROM gone;
  PERFORM set_config('audit.trimming', 'off', true);
  IF count_ > 0 THEN
    INSERT INTO audit_logs AS l (tenant_id, trimmed, last_position)
      VALUES (tenant, last_turn || '-' || last_minor + 1, newest.turn || '-' || newest.minor)
      ON CONFLICT (tenant_id) DO UPDATE
      SET trimmed = excluded.trimmed, last_position = excluded.last_position;
  END IF;
  RETURN count_;
END $$;

-- Removes at most MOST tokens and as many ticks that have run out, and what is known of workers that have been
-- gone since SEEN_BEFORE; how many tokens or ticks went, whichever were more. What an emit has in hand is left
-- to the next call, so that neither waits for the other for longer than the removal takes. Whoever is bound
-- to a tenant removes nothing of others.
CREATE FUNCTION audit_forget(most integer, seen_before bigint)
RETURNS integer LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  now_ bigint := audit_now();
  mine text[] := audit_stored();
  tokens integer;
  ticks integer;
BEGIN
  -- Next month's place a week ahead, so that no emit has to make it.
  PERFORM audit_month(now_ + 7 * 86400 * 1000000::bigint);
  DELETE FROM audit_tokens t USING (
    SELECT o.tenant_id, o.token FROM audit_tokens o
    WHERE o.until < now_ AND (mine IS NULL OR o.tenant_id = ANY (mine))
    ORDER BY o.until LIMIT most FOR UPDATE SKIP LOCKED) AS old_ones
    WHERE t.tenant_id = old_ones.tenant_id AND t.token = old_ones.token;
  GET DIAGNOSTICS tokens = ROW_COUNT;
  DELETE FROM audit_ticks t USING (
    SELECT o.tenant_id, o.token FROM audit_ticks o
    WHERE o.until < now_ AND (mine IS NULL OR o.tenant_id = ANY (mine))
    ORDER BY o.until LIMIT most FOR UPDATE SKIP LOCKED) AS old_ones
    WHERE t.tenant_id = old_ones.tenant_id AND t.token = old_ones.token;
  GET DIAGNOSTICS ticks = ROW_COUNT;
  DELETE FROM audit_leases l USING (
    SELECT o.worker FROM audit_leases o WHERE greatest(o.until, o.seen) < seen_before
    LIMIT most FOR UPDATE SKIP LOCKED) AS old_ones
    WHERE l.worker = old_ones.worker;
  RETURN greatest(tokens, ticks);
END $$;
