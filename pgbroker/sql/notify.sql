-- Wake the workers that listen for these queues, when this transaction commits.
--
--   queues  text[]  names of the queues with new work
--
-- Scope:  none
-- Rows:   none of interest.
-- Locks:  PostgreSQL's notification lock, until the commit: so it goes alone, never with business work.
--
-- A notification makes a transaction write a commit record. Nobody need wait until that is on the disk: a wake-up
-- that a crash loses costs time only.
select pg_notify('pgbroker', queue), set_config('synchronous_commit', 'off', true)
from unnest(%(queues)s::text[]) as woken (queue)
