-- Partitions of audit_rows by the month (UTC) in which a row was stored. Run on tables without a row.
--
-- A unique key of a partitioned table must hold the month, so that of audit_rows alone no longer says "one
-- started row"; the primary key of audit_invocations, which decided all along, has no partitions.

ALTER TABLE audit_rows DROP CONSTRAINT audit_rows_request_id_tenant_id_slot_key;
CREATE TABLE audit_months (LIKE audit_rows INCLUDING ALL) PARTITION BY RANGE (minor);
DROP TABLE audit_rows;
ALTER TABLE audit_months RENAME TO audit_rows;
ALTER INDEX audit_months_pkey RENAME TO audit_rows_pkey;
ALTER TABLE audit_rows ADD UNIQUE (request_id, tenant_id, slot, minor);
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_rows
  FOR EACH ROW EXECUTE FUNCTION audit_append_only();
CREATE TRIGGER audit_append_only_whole BEFORE TRUNCATE ON audit_rows
  FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only();

-- Attached, not made as a partition: that would wait for everybody who reads, a backup of hours too, and let
-- nobody store a row meanwhile. Only partitions that are themselves closed to everybody are attached: a right
-- to read the whole must not be gone round by reading a part.
CREATE FUNCTION audit_add_month(place text, month_ timestamp) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext('audit_month'), hashtext(current_schema::text));
  -- Looked up in the table, not in the session's cache: another call may have made it just now.
  PERFORM 1 FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'audit_rows'::regclass AND c.relname = place;
  IF FOUND THEN RETURN; END IF;
  EXECUTE format('CREATE TABLE %I (LIKE audit_rows INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', place);
  EXECUTE format('REVOKE ALL ON %I FROM PUBLIC', place);
  EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', place);
  EXECUTE format('CREATE TRIGGER audit_append_only_whole BEFORE TRUNCATE ON %I
    FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()', place);
  EXECUTE format('ALTER TABLE audit_rows ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', place,
    extract(epoch FROM month_)::bigint * 1000000,
    extract(epoch FROM month_ + interval '1 month')::bigint * 1000000);
END $$;

CREATE OR REPLACE FUNCTION audit_month(moment bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  at_ timestamp := to_timestamp(moment / 1000000) AT TIME ZONE 'UTC';
  place text := 'audit_rows_' || to_char(at_, 'YYYY_MM');
BEGIN
  IF to_regclass(place) IS NULL THEN PERFORM audit_add_month(place, date_trunc('month', at_)); END IF;
  RETURN true;
END $$;

-- Removes the places of past months in which no row is left, all of them trimmed; which. One that somebody is
-- just reading is left to the next time, for meanwhile nobody could store a row.
CREATE FUNCTION audit_drop_empty_months() RETURNS SETOF text
LANGUAGE plpgsql VOLATILE SET lock_timeout = '1s' AS $$
DECLARE
  place text;
  empty_ boolean;
BEGIN
  FOR place IN
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'audit_rows'::regclass
      AND c.relname < 'audit_rows_' || to_char(to_timestamp(audit_now() / 1000000) AT TIME ZONE 'UTC', 'YYYY_MM')
    ORDER BY 1
  LOOP
    EXECUTE format('SELECT NOT EXISTS (SELECT FROM %I)', place) INTO empty_;
    CONTINUE WHEN NOT empty_;
    BEGIN
      EXECUTE format('LOCK TABLE audit_rows, %I IN ACCESS EXCLUSIVE MODE', place);
      EXECUTE format('SELECT NOT EXISTS (SELECT FROM %I)', place) INTO empty_; -- now that nobody adds one
      IF empty_ THEN
        EXECUTE format('DROP TABLE %I', place);
        RETURN NEXT place;
      END IF;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
END $$;
