-- Keep one sample of each queue: how much is ready, scheduled and running, and since when the oldest waits.
--
--   duty       text           the sampler must lead this duty
--   holder     uuid           ... as this holder
--   epoch      bigint         ... in this reign
--   queue_ids  smallint[]     queues of which a hint is given: hints spare entries that ended jobs left in an index
--   since      timestamptz[]  ... no ready job is older than this
--   within     interval       no scheduled job has been due for longer
--   leased     timestamptz    no running job's lease ends before; null: no hint
--   lease      interval       how long a lease lasts where its queue does not say
--   bound      bigint         count no further
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per queue: queue_id, and what may be given as since and as leased the next time; none when the duty is
--         led by another one meanwhile, and then nothing is counted and nothing kept.
-- Locks:  none.
-- Index:  job_claim, job_due, job_lease.
--
-- Not idempotent: a second sampler would add a second sample. So it carries the fence of the reign.
--
-- The first sample of a queue in five minutes is coarse, and kept for longer than the others.
--
-- Hints are columns by the time they meet a job: what holds a subquery is no way into an index under a policy.
with lead as materialized (
    select
    from pgbroker.leader
    where leader.duty = %(duty)s
      and leader.holder = %(holder)s
      and leader.epoch = %(epoch)s
      and leader.expires_at > statement_timestamp()
),
looked_at as materialized (
    select queue.id as queue_id, coalesce(hint.since, '-infinity') as since
    from pgbroker.queue
    left join unnest(%(queue_ids)s::smallint[], %(since)s::timestamptz[]) as hint (queue_id, since)
        on hint.queue_id = queue.id
),
running as materialized (
    select leased.queue_id, count(*) as total, min(leased.lease_expires_at) as first_end
    from (
        select job.queue_id, job.lease_expires_at
        from pgbroker.job
        where job.status = 3 /* running */
          and job.lease_expires_at > greatest(statement_timestamp(), %(leased)s::timestamptz)
        order by job.lease_expires_at
        limit %(bound)s
    ) as leased
    group by leased.queue_id
),
counted as materialized (
    select
        looked_at.queue_id,
        ready.total as ready,
        ready.oldest,
        scheduled.total as scheduled,
        coalesce((select running.total from running where running.queue_id = looked_at.queue_id), 0) as running
    from lead
    cross join looked_at
    cross join lateral (
        select coalesce(sum(lane.total), 0)::bigint as total, min(lane.oldest) as oldest
        from (
            select distinct queue_priority.priority
            from pgbroker.queue_priority
            where queue_priority.queue_id = looked_at.queue_id
        ) as known
        cross join lateral (
            select count(*) as total, min(waiting.ready_at) as oldest
            from (
                select job.ready_at
                from pgbroker.job
                where job.queue_id = looked_at.queue_id
                  and job.status = 2 /* ready */
                  and job.priority = known.priority
                  and job.ready_at >= looked_at.since
                order by job.ready_at
                limit %(bound)s
            ) as waiting
        ) as lane
    ) as ready
    cross join lateral (
        select count(*) as total
        from (
            select
            from pgbroker.job
            where job.queue_id = looked_at.queue_id
              and job.status = 0 /* scheduled */
              and job.available_at > statement_timestamp() - %(within)s::interval
            limit %(bound)s
        ) as later
    ) as scheduled
),
kept as (
    insert into pgbroker.queue_sample (queue_id, ready, scheduled, running, oldest_ready_seconds, coarse)
    select
        counted.queue_id,
        counted.ready,
        counted.scheduled,
        counted.running,
        extract(epoch from statement_timestamp() - counted.oldest)::double precision,
        -- One look for each queue: as `not exists` it may read the samples of all of them.
        coalesce(
            (
                select false
                from pgbroker.queue_sample
                where queue_sample.queue_id = counted.queue_id
                  and queue_sample.sampled_at
                    >= date_bin('5 minutes', statement_timestamp(), '2000-01-01 00:00:00+00')
                limit 1
            ),
            true
        )
    from counted
)
select
    queue_id,
    -- Some seconds back, where nothing is older: what was enqueued a moment ago may commit in a moment.
    least(oldest, statement_timestamp() - interval '10 seconds') as since,
    -- Leases only move on, and a new one lasts for as long as the shortest at least.
    (
        select least(
            min(running.first_end) - interval '1 microsecond',
            statement_timestamp() + least(%(lease)s::interval, min(queue.lease_seconds) * interval '1 second')
        )
        from pgbroker.queue
        left join running on running.queue_id = queue.id
    ) as leased
from counted
