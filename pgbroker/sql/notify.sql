-- Wake the workers that listen for these queues, when this transaction commits.
--
--   queues  text[]  names of the queues with new work
--
-- Scope:  none
-- Rows:   none of interest.
-- Locks:  PostgreSQL's notification lock, until the commit: so it goes alone, never with business work.
select pg_notify('pgbroker', queue)
from unnest(%(queues)s::text[]) as woken (queue)
