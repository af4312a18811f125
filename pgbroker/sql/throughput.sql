-- Tell what workers did in the last minutes, minute by minute, from the counters.
--
--   queue_id  smallint  only in this queue; null: in all
--   minutes   int       how many minutes back, the current one included
--
-- Scope:  none
-- Rows:   one per minute, oldest first, also where nothing happened: bucket, done, retried, failed, dead, cancelled,
--         run_seconds, wait_seconds.
-- Locks:  none.
-- Index:  job_counter_fold.
--
-- Counters know no tenant.
select
    minute.bucket,
    coalesce(sum(counter.done), 0)::bigint as done,
    coalesce(sum(counter.retried), 0)::bigint as retried,
    coalesce(sum(counter.failed), 0)::bigint as failed,
    coalesce(sum(counter.dead), 0)::bigint as dead,
    coalesce(sum(counter.cancelled), 0)::bigint as cancelled,
    coalesce(sum(counter.run_seconds), 0)::double precision as run_seconds,
    coalesce(sum(counter.wait_seconds), 0)::double precision as wait_seconds
from generate_series(
    date_trunc('minute', statement_timestamp()) - (%(minutes)s::int - 1) * interval '1 minute',
    date_trunc('minute', statement_timestamp()),
    interval '1 minute'
) as minute (bucket)
left join pgbroker.job_counter as counter
    on counter.fold in (0, 1) -- minutes, of one worker or of all
    and counter.bucket = minute.bucket
    and (%(queue_id)s::smallint is null or counter.queue_id = %(queue_id)s::smallint)
group by minute.bucket
order by minute.bucket
