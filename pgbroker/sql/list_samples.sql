-- List the samples of a queue, oldest first.
--
--   queue_id  smallint  the queue
--   since     interval  leave out what is older
--   limit     bigint    most samples to list, the newest
--
-- Scope:  none
-- Rows:   sampled_at, ready, scheduled, running, and the age of the oldest ready job in seconds (null: none).
-- Locks:  none.
-- Index:  queue_sample_pkey.
select *
from (
    select sampled_at, ready, scheduled, running, oldest_ready_seconds
    from pgbroker.queue_sample
    where queue_id = %(queue_id)s
      and sampled_at > statement_timestamp() - %(since)s::interval
    order by sampled_at desc
    limit %(limit)s
) as newest
order by sampled_at
