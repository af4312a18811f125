-- Tell for each queue whether something is ready, and when the next scheduled job is due.
--
--   queue_ids  smallint[]  the queues to look at
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per queue: queue_id, ready, seconds until the next due job (negative: due; null: none).
-- Locks:  none.
-- Index:  job_claim, job_due.
--
-- One statement for all queues, so that an idle worker costs the database one statement a poll.
select
    served.queue_id,
    exists (
        select
        from pgbroker.job
        where job.queue_id = served.queue_id
          and job.status = 2 /* ready */
    ) as ready,
    (
        select extract(epoch from job.available_at - statement_timestamp())::double precision
        from pgbroker.job
        where job.queue_id = served.queue_id
          and job.status = 0 /* scheduled */
        order by job.available_at
        limit 1
    ) as due_in_seconds
from unnest(%(queue_ids)s::smallint[]) as served (queue_id)
