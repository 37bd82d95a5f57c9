-- Version 1 of the audit memory in SQLite 3.37 or later.
--
-- A row is stored in one transaction that begins as a writer, so rows come in the order of their turn. The
-- tables mean what those of postgres.sql mean.

CREATE TABLE audit_settings (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), version INTEGER NOT NULL) STRICT;
INSERT INTO audit_settings VALUES (1, 1);

CREATE TABLE audit_rows (
  -- AUTOINCREMENT: the number of a row that was trimmed is never given again.
  turn            INTEGER PRIMARY KEY AUTOINCREMENT,
  minor           INTEGER NOT NULL,
  tenant_id       TEXT NOT NULL,
  request_id      TEXT NOT NULL,
  slot            INTEGER NOT NULL CHECK (slot >= 0),
  moment          INTEGER,
  kind            TEXT,
  skill_id        TEXT,
  outcome         TEXT,
  caller_persona  TEXT,
  trace_id        TEXT,
  task_id         TEXT,
  stored          BLOB NOT NULL,
  UNIQUE (request_id, tenant_id, slot)
) STRICT;
CREATE INDEX audit_rows_of_tenant ON audit_rows (tenant_id, turn);
CREATE INDEX audit_rows_of_trace ON audit_rows (trace_id, turn);
CREATE INDEX audit_rows_of_task ON audit_rows (task_id, turn) WHERE task_id IS NOT NULL;
-- Of what did not succeed: the index of the tenant does for all else, and most emits pay nothing for this one.
CREATE INDEX audit_rows_of_outcome ON audit_rows (tenant_id, outcome, turn) WHERE outcome <> 'success';

CREATE TABLE audit_invocations (
  tenant_id   TEXT NOT NULL,
  request_id  TEXT NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('o', 'c', 't', 'r')),
  replayed    INTEGER NOT NULL DEFAULT 0,
  turn        INTEGER,
  minor       INTEGER,
  first       BLOB,
  last        BLOB,
  late        BLOB NOT NULL DEFAULT x'',
  PRIMARY KEY (request_id, tenant_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_invocations_open ON audit_invocations (tenant_id, turn) WHERE state = 'o';

CREATE TABLE audit_tokens (
  tenant_id TEXT NOT NULL, token TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, token)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_tokens_until ON audit_tokens (until);

CREATE TABLE audit_ticks (
  tenant_id TEXT NOT NULL, token TEXT NOT NULL, holder TEXT NOT NULL, until INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, token)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_ticks_until ON audit_ticks (until);

CREATE TABLE audit_deaths (
  tenant_id TEXT NOT NULL, message TEXT NOT NULL, deaths INTEGER NOT NULL, PRIMARY KEY (tenant_id, message)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit_leases (worker TEXT PRIMARY KEY, until INTEGER NOT NULL, seen INTEGER NOT NULL) STRICT;
CREATE TABLE audit_leaders (role TEXT PRIMARY KEY, holder TEXT NOT NULL, until INTEGER NOT NULL) STRICT;
CREATE TABLE audit_logs (
  tenant_id TEXT PRIMARY KEY, sealed BLOB, sealed_position TEXT, trimmed TEXT, last_position TEXT
) STRICT;

-- Trimming says so here, within its transaction.
CREATE TABLE audit_trimming (tenant_id TEXT PRIMARY KEY) STRICT;

CREATE TRIGGER audit_append_only_update BEFORE UPDATE ON audit_rows BEGIN
  SELECT RAISE(ABORT, 'the audit memory is append-only: UPDATE of audit_rows is refused');
END;
CREATE TRIGGER audit_append_only_delete BEFORE DELETE ON audit_rows
WHEN NOT EXISTS (SELECT 1 FROM audit_trimming) BEGIN
  SELECT RAISE(ABORT, 'the audit memory is append-only: DELETE of audit_rows is refused');
END;
