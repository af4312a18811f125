-- Find the rows of job types by name.
--
--   names  text[]  the types
--
-- Scope:  none
-- Rows:   name, id.
-- Locks:  none.
select name, id
from pgbroker.job_type
where name = any (%(names)s::text[])
