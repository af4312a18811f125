-- Tell how much waits in each queue, cheaply: every count stops at a bound.
--
--   tenant  text    only this tenant's jobs; null: of all that the scope shows
--   bound   bigint  count no further
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   one per queue, by name: id, queue, ageing_seconds, lease_seconds, ready, scheduled, waiting, blocked, running,
--         failed, dead_letter (each at most bound), and the age of the oldest ready job in seconds (null: none).
-- Locks:  none.
-- Index:  job_claim, job_due, job_waiting, job_lease, job_gone_wrong.
--
-- Waiting, blocked, running, failed and dead-lettered jobs have no index by queue: up to the bound of them are read once,
-- of the last two the newest first, and told apart here.
--
-- What is counted is ordered as its index is: up to the bound in no order, the planner would rather read the table.
with running as materialized (
    select queue_id, count(*) as total
    from (
        select job.queue_id
        from pgbroker.job
        where job.status = 3 /* running */
          and (%(tenant)s::text is null or job.tenant_id = %(tenant)s::text)
        limit %(bound)s
    ) as counted
    group by queue_id
),
held_up as materialized (
    select queue_id, status, count(*) as total
    from (
        select job.queue_id, job.status
        from pgbroker.job
        where job.status in (1 /* waiting */, 5 /* blocked */)
          and (%(tenant)s::text is null or job.tenant_id = %(tenant)s::text)
        order by job.id
        limit %(bound)s
    ) as counted
    group by queue_id, status
),
gone_wrong as materialized (
    select queue_id, status, count(*) as total
    from (
        (
            select job.queue_id, job.status
            from pgbroker.job
            where job.status = 11 /* failed */
              and (%(tenant)s::text is null or job.tenant_id = %(tenant)s::text)
            order by job.finished_at desc
            limit %(bound)s
        )
        union all
        (
            select job.queue_id, job.status
            from pgbroker.job
            where job.status = 12 /* dead_letter */
              and (%(tenant)s::text is null or job.tenant_id = %(tenant)s::text)
            order by job.finished_at desc
            limit %(bound)s
        )
    ) as counted
    group by queue_id, status
)
select
    queue.id,
    queue.name as queue,
    queue.ageing_seconds,
    queue.lease_seconds,
    (
        select count(*)
        from (
            select
            from pgbroker.job
            where job.queue_id = queue.id
              and job.status = 2 /* ready */
              and (%(tenant)s::text is null or job.tenant_id = %(tenant)s::text)
            order by job.priority desc, job.ready_at
            limit %(bound)s
        ) as counted
    ) as ready,
    (
        select count(*)
        from (
            select
            from pgbroker.job
            where job.queue_id = queue.id
              and job.status = 0 /* scheduled */
              and (%(tenant)s::text is null or job.tenant_id = %(tenant)s::text)
            order by job.available_at
            limit %(bound)s
        ) as counted
    ) as scheduled,
    coalesce(
        (select total from held_up where held_up.queue_id = queue.id and status = 1 /* waiting */), 0
    ) as waiting,
    coalesce(
        (select total from held_up where held_up.queue_id = queue.id and status = 5 /* blocked */), 0
    ) as blocked,
    coalesce((select total from running where running.queue_id = queue.id), 0) as running,
    coalesce(
        (select total from gone_wrong where gone_wrong.queue_id = queue.id and status = 11 /* failed */), 0
    ) as failed,
    coalesce(
        (select total from gone_wrong where gone_wrong.queue_id = queue.id and status = 12 /* dead_letter */), 0
    ) as dead_letter,
    (
        select extract(epoch from statement_timestamp() - min(first.ready_at))::double precision
        from (
            select distinct priority
            from pgbroker.queue_priority
            where queue_priority.queue_id = queue.id
        ) as lane
        cross join lateral (
            select job.ready_at
            from pgbroker.job
            where job.queue_id = queue.id
              and job.status = 2 /* ready */
              and job.priority = lane.priority
              and (%(tenant)s::text is null or job.tenant_id = %(tenant)s::text)
            order by job.ready_at
            limit 1
        ) as first
    ) as oldest_ready_seconds
from pgbroker.queue
order by queue.name
