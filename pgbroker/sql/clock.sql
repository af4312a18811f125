-- Tell the database's time.
--
-- Scope:  none
-- Rows:   one: the instant.
-- Locks:  none.
select statement_timestamp()
