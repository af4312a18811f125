-- Tell whether pgbroker's tables are there.
--
-- Scope:  none
-- Rows:   one: true or false.
-- Locks:  none.
select to_regclass('pgbroker.job_type') is not null
