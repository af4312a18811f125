-- Tell what the server does for some sessions, so that one which waits for an answer in vain is found out.
--
--   pids  int[]  the server's processes
--
-- Scope:  none
-- Rows:   one per process that is there: pid, idle (it waits for its client; null: this role may not know) and
--         since when; and one for the asking session, which tells whether a pooler stands in between.
-- Locks:  none.
select pid, left(state, 4) = 'idle' as idle, state_change as since
from pg_catalog.pg_stat_activity
where pid = any (%(pids)s::int[] || pg_backend_pid())
