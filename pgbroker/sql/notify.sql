-- Wake the workers that listen for these queues, when this transaction commits.
--
--   queue_ids  smallint[]  queues with new work
--
-- Scope:  none
-- Rows:   none of interest.
-- Locks:  PostgreSQL's notification lock, until the commit: so it goes alone, never with business work.
select pg_notify('pgbroker', queue_id::text)
from unnest(%(queue_ids)s::smallint[]) as woken (queue_id)
