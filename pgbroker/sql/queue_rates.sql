-- Tell how many attempts ended in each queue in the last minutes, from the counters.
--
--   minutes  int  how many minutes back, the current one included
--
-- Scope:  none
-- Rows:   one per queue where any did: queue_id, done, and errors (retried, failed or dead).
-- Locks:  none.
-- Index:  job_counter_fold.
--
-- Counters know no tenant.
select
    counter.queue_id,
    sum(counter.done)::bigint as done,
    sum(counter.retried + counter.failed + counter.dead)::bigint as errors
from pgbroker.job_counter as counter
where counter.fold in (0, 1) -- minutes, of one worker or of all
  and counter.bucket >= date_trunc('minute', statement_timestamp()) - (%(minutes)s::int - 1) * interval '1 minute'
group by counter.queue_id
order by counter.queue_id
