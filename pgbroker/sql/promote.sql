-- Make due jobs of some queues ready: scheduled -> ready.
--
--   queue_ids  smallint[]   the queues to serve
--   within     interval      look only at times due so long ago; a hint that spares dead index entries
--   limit      bigint       most jobs per queue
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per queue that got jobs, with how many.
-- Locks:  job rows, skip locked: it never waits for another worker.
-- Index:  job_due.
--
-- Each job gets its own ready_at, in the order they were due, so that a claim can remember where it stopped.
with due as materialized (
    select
        next.id,
        row_number() over (order by next.available_at, next.id) as place
    from unnest(%(queue_ids)s::smallint[]) as served (queue_id)
    cross join lateral (
        select job.id, job.available_at
        from pgbroker.job
        where job.queue_id = served.queue_id
          and job.status = 0 /* scheduled */
          and job.available_at > statement_timestamp() - %(within)s::interval
          and job.available_at <= statement_timestamp()
        order by job.available_at
        limit %(limit)s
        for no key update skip locked
    ) as next
),
promoted as (
    update pgbroker.job
    set status = 2 /* ready */,
        ready_at = statement_timestamp() + due.place * interval '1 microsecond',
        available_at = null
    from due
    where job.id = any (array[due.id])
    returning job.queue_id
)
select queue_id, count(*)
from promoted
group by queue_id
