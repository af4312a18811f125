-- Take back attempts whose lease expired, and decide where their jobs go.
--
--   within       interval           look only at leases that expired so long ago; a hint
--   skip         bigint            leave so many of them alone, the first: a page with them has failed
--   limit        bigint            most attempts to take back
--   in_touch     interval          for how long the database has been reached without a break
--   max_crashes  int               lost workers after which a job is a dead letter
--   base         double precision  backoff where the job's options have none: seconds,
--   factor       double precision  ... growth per failure,
--   cap          double precision  ... longest wait,
--   jitter       boolean           ... and whether a random share of it is waited
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per attempt taken back: job_id, lease_token, worker_id, tenant_id, queue_id, job_type_id,
--         attempt_count, state, status.
-- Locks:  job rows, skip locked: it never waits for a settle, and a row it holds is settled or reaped, not both.
-- Index:  job_lease.
--
-- running -> scheduled, dead_letter, cancelled. Whether the worker died is only a label: a worker row that has
-- been silent for half a lease, while it could have spoken, makes it a crash; otherwise the lease ran out on a live
-- one. (A whole lease would be too long: its last beat may be younger than what it claimed just before.) Whoever
-- reaps was cut off itself where the database was away, and then nobody had a chance before they had all connected
-- again, which takes them some seconds. The first loss is retried at once,
-- then by backoff, which counts failures: snoozes and releases are none. It is compared as logarithms before it is
-- multiplied, and what a row's options cannot mean is read as absent or as the nearest that can: one odd row
-- would stop the reaper for all.
with expired as materialized (
    select
        job.id,
        job.worker_id,
        job.lease_token,
        job.leased_at,
        worker.id is null
            or worker.heartbeat_at + (worker.expires_at - worker.heartbeat_at) / 2 <= statement_timestamp()
            and greatest((worker.expires_at - worker.heartbeat_at) / 2, interval '5 seconds') <= %(in_touch)s::interval
            as crashed,
        round(least(greatest(given.base, 0), 31622400), 6)::double precision as base,
        round(least(greatest(given.factor, 1), 1000000), 6)::double precision as factor,
        round(least(greatest(given.cap, 0), 31622400), 6)::double precision as cap,
        case when given.jitter then random() else 1.0 end as share,
        greatest(job.attempt_count - (job.max_attempts - job.declared_attempts), 1) as failures
    from (
        select *
        from pgbroker.job
        where job.status = 3 /* running */
          and job.lease_expires_at > statement_timestamp() - %(within)s::interval
          and job.lease_expires_at <= statement_timestamp()
        order by job.lease_expires_at
        offset %(skip)s
        limit %(limit)s
        for no key update skip locked
    ) as job
    left join pgbroker.worker on worker.id = job.worker_id
    left join pgbroker.job_payload as payload on payload.job_id = job.id
    cross join lateral (
        select
            coalesce(
                jsonb_path_query_first(payload.options, '$.backoff.base ? (@.type() == "number")')::numeric,
                %(base)s::double precision::numeric
            ) as base,
            coalesce(
                jsonb_path_query_first(payload.options, '$.backoff.factor ? (@.type() == "number")')::numeric,
                %(factor)s::double precision::numeric
            ) as factor,
            coalesce(
                jsonb_path_query_first(payload.options, '$.backoff.cap ? (@.type() == "number")')::numeric,
                %(cap)s::double precision::numeric
            ) as cap,
            coalesce(
                jsonb_path_query_first(payload.options, '$.backoff.jitter ? (@.type() == "boolean")')::boolean,
                %(jitter)s
            ) as jitter
    ) as given
),
reaped as (
    update pgbroker.job
    set status = case
            when cancel_requested_at is not null then 13 /* cancelled */
            when expired.crashed and crash_count + 1 >= %(max_crashes)s then 12 /* dead_letter */
            when attempt_count >= max_attempts then 12 /* dead_letter */
            else 0 /* scheduled */
        end,
        finished_at = case
            when cancel_requested_at is not null
              or expired.crashed and crash_count + 1 >= %(max_crashes)s
              or attempt_count >= max_attempts
                then statement_timestamp()
        end,
        available_at = case
            when cancel_requested_at is null
             and not (expired.crashed and crash_count + 1 >= %(max_crashes)s)
             and attempt_count < max_attempts
                then statement_timestamp() + case
                    when crash_count = 0 then interval '0'
                    else expired.share * interval '1 second' * case
                        when expired.base <= 0 or expired.cap <= 0 then 0.0
                        when (expired.failures - 1) * ln(expired.factor) >= ln(expired.cap) - ln(expired.base)
                            then expired.cap
                        else expired.base * power(expired.factor, expired.failures - 1)
                    end
                end
        end,
        crash_count = crash_count + expired.crashed::int,
        worker_id = null,
        lease_expires_at = null
    from expired
    where job.id = any (array[expired.id])
    returning
        job.id, job.lease_token, expired.worker_id, job.tenant_id, job.queue_id, job.job_type_id,
        job.attempt_count, job.status, expired.leased_at,
        case when expired.crashed then 6 /* crashed */ else 5 /* lease_expired */ end as state
),
ended as (
    insert into pgbroker.execution (
        job_id, tenant_id, attempt_no, state, worker_id, started_at, error_code, error
    )
    select
        id,
        tenant_id,
        attempt_count,
        state,
        worker_id,
        leased_at,
        'worker_lost',
        case state
            when 6 /* crashed */ then 'the worker stopped renewing its lease and is gone'
            else 'the lease ran out while the worker was alive'
        end
    from reaped
)
select
    id as job_id, lease_token, worker_id, tenant_id, queue_id, job_type_id, attempt_count, state, status
from reaped
