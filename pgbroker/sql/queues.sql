-- List the queues.
--
-- Scope:  none
-- Rows:   id, name, ageing_seconds, lease_seconds.
-- Locks:  none.
select id, name, ageing_seconds, lease_seconds
from pgbroker.queue
order by name
