-- Take up to `limit` ready jobs of one queue for one worker, under a lease.
--
--   queue_id     smallint       the queue to serve
--   limit        bigint         most jobs to take, at least 1
--   idle         bigint         slots with nothing to do: so many jobs are taken whatever they are
--   quick        int[]          types whose jobs end fast: more of them may be taken, to be held
--   suspects     int            most suspects to take: jobs that have crashed a worker and that another crash ends
--   max_crashes  int            lost workers after which a job is a dead letter
--   worker_id    uuid           who will hold the leases
--   lease        interval       how long each lease lasts
--   ageing       interval       what one step of priority is worth in waiting
--   priorities   smallint[]     lanes this worker remembers
--   since        timestamptz[]  ... and the ready_at it took last there
--   since_id     uuid[]         ... and the id
--
-- Scope:  all
-- Plan:   hot, kept
-- Rows:   one per claimed job with its payload, in rank order; none when nothing is ready. A job that lost its
--         payload comes with null arguments: it must fail in sight.
-- Locks:  job rows, skip locked: it never waits for another worker.
-- Index:  job_claim.
--
-- One index range per priority, merged by ready_at - priority * ageing: a higher priority jumps ahead as if
-- it had become ready earlier, and every job's turn comes. `since` is a hint that spares reading again the
-- dead index entries a held snapshot keeps; an empty hint reads from the very start. Lanes come from
-- queue_priority, so that a priority never seen before is claimed at once.
--
-- coalesce hides the pauses from the planner: where all jobs are of one type it takes "another type than ..."
-- for "none at all", expects one row, and would rather collect and sort the whole backlog (2 s at a million).
--
-- The payload is looked up by `any`, not by an equality: a plan made while there was none would read the whole primary
-- key for each job, ever after.
--
-- Beyond the idle slots only quick types are taken, and no fragile job (it crashed a worker, or this is its
-- last attempt): held behind others it could be lost to somebody else's crash. Suspects do not run side by
-- side in one worker, since the guilty one would take the others along at every crash, to the last.
with lane as materialized (
    select
        known.priority,
        coalesce(bound.ready_at, '-infinity') as since,
        coalesce(bound.id, '00000000-0000-0000-0000-000000000000') as since_id
    from (
        select distinct priority
        from pgbroker.queue_priority
        where queue_id = %(queue_id)s
    ) as known
    left join unnest(
        %(priorities)s::smallint[],
        %(since)s::timestamptz[],
        %(since_id)s::uuid[]
    ) as bound (priority, ready_at, id)
        on bound.priority = known.priority
    where not exists (
        select
        from pgbroker.pause
        where pause.kind = 'queue'
          and pause.queue_id = %(queue_id)s
          and (pause.until is null or pause.until > statement_timestamp())
    )
),
taken as (
    update pgbroker.job
    set status = 3 /* running */,
        attempt_count = attempt_count + 1,
        lease_token = lease_token + 1,
        worker_id = %(worker_id)s,
        leased_at = statement_timestamp(),
        lease_expires_at = statement_timestamp() + %(lease)s
    where id = any (array(
        select chosen.id
        from (
            select
                candidate.id,
                candidate.may_be_held,
                candidate.is_suspect,
                row_number() over best_first as place,
                count(*) filter (where candidate.is_suspect) over best_first as suspects
            from lane
            cross join lateral (
                select
                    job.id,
                    job.ready_at - lane.priority * %(ageing)s::interval as rank,
                    job.crash_count = 0
                        and job.attempt_count + 1 < job.max_attempts
                        and job.job_type_id = any (%(quick)s::int[]) as may_be_held,
                    job.crash_count > 0
                        and (
                            job.crash_count + 1 >= %(max_crashes)s
                            or job.attempt_count + 1 >= job.max_attempts
                        ) as is_suspect
                from pgbroker.job
                where job.queue_id = %(queue_id)s
                  and job.status = 2 /* ready */
                  and job.priority = lane.priority
                  and (job.ready_at, job.id) > (lane.since, lane.since_id)
                  and (job.deadline_at is null or job.deadline_at > statement_timestamp())
                  and coalesce(
                      job.job_type_id <> all (array(
                          select pause.job_type_id
                          from pgbroker.pause
                          where pause.kind = 'job_type'
                            and (pause.until is null or pause.until > statement_timestamp())
                      )),
                      true
                  )
                  and coalesce(
                      job.tenant_id <> all (array(
                          select pause.tenant
                          from pgbroker.pause
                          where (pause.kind = 'tenant' or pause.kind = 'queue_tenant' and pause.queue_id = %(queue_id)s)
                            and (pause.until is null or pause.until > statement_timestamp())
                      )),
                      true
                  )
                  and (
                      %(suspects)s > 0
                      or job.crash_count = 0
                      or job.crash_count + 1 < %(max_crashes)s and job.attempt_count + 1 < job.max_attempts
                  )
                order by job.ready_at, job.id
                limit %(limit)s
                for no key update skip locked
            ) as candidate
            window best_first as (order by candidate.rank, candidate.id)
            order by candidate.rank, candidate.id
            limit %(limit)s
        ) as chosen
        where (chosen.place <= %(idle)s or chosen.may_be_held)
          and (not chosen.is_suspect or chosen.suspects <= %(suspects)s)
    ))
    returning
        id, lease_token, queue_id, job_type_id, tenant_id, priority, attempt_count,
        max_attempts, declared_attempts, crash_count, ready_at, leased_at, deadline_at, created_at
)
select
    taken.id as job_id,
    taken.lease_token,
    taken.queue_id,
    taken.job_type_id,
    coalesce(payload.type_version, 1) as type_version,
    taken.tenant_id,
    taken.priority,
    taken.attempt_count,
    taken.max_attempts,
    taken.declared_attempts,
    taken.crash_count,
    taken.ready_at,
    taken.leased_at,
    taken.deadline_at,
    taken.created_at,
    payload.args::text as args,
    payload.options,
    payload.principal,
    payload.correlation_id,
    payload.traceparent,
    payload.args_body,
    payload.tags
from taken
left join pgbroker.job_payload as payload on payload.job_id = any (array[taken.id])
order by taken.ready_at - taken.priority * %(ageing)s::interval, taken.id
