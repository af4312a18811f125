-- Tell what the server does for some sessions, so that one which waits for an answer in vain is found out.
--
--   pids  int[]  the server's processes
--
-- Scope:  none
-- Rows:   one per process that is there: pid, what it does (idle: it waits for its client; reading: it has a part
--         of what its client sends, and waits for the rest; busy; null: this role may not know) and since when; and
--         one for the asking session, which tells whether a pooler stands in between.
-- Locks:  none.
select
    pid,
    case
        when state like 'idle%%' then 'idle'
        -- Rows of a COPY may take their time.
        when wait_event = 'ClientRead' and query !~* '^\s*copy\M' then 'reading'
        when state is not null then 'busy'
    end as does,
    state_change as since
from pg_catalog.pg_stat_activity
where pid = any (%(pids)s::int[] || pg_backend_pid())
