-- Find the names of job types by number.
--
--   ids  int[]  the types
--
-- Scope:  none
-- Rows:   id, name.
-- Locks:  none.
select id, name
from pgbroker.job_type
where id = any (%(ids)s::int[])
