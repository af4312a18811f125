-- Take back attempts whose lease expired, and decide where their jobs go.
--
--   since        timestamptz       leases that expired at or before it were looked at already; a hint
--   limit        bigint            most attempts to take back
--   max_crashes  int               lost workers after which a job is a dead letter
--   base         double precision  backoff where the job's options have none: seconds,
--   factor       double precision  ... growth per failure,
--   cap          double precision  ... and longest wait
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per attempt taken back: job_id, lease_token, worker_id, tenant_id, queue_id, job_type_id,
--         attempt_count, state, status.
-- Locks:  job rows, skip locked: it never waits for a settle, and a row it holds is settled or reaped, not both.
-- Index:  job_lease.
--
-- running -> scheduled, dead_letter, cancelled. Whether the worker died is only a label: a silent worker row
-- makes it a crash, otherwise the lease ran out on a live one. The first loss is retried at once, then by
-- backoff: capped before it is multiplied, in powers of at most 60.
with expired as materialized (
    select
        job.id,
        job.worker_id,
        job.lease_token,
        job.leased_at,
        worker.id is null or worker.expires_at <= statement_timestamp() as crashed,
        coalesce((payload.options -> 'backoff' ->> 'base')::double precision, %(base)s) as base,
        coalesce((payload.options -> 'backoff' ->> 'factor')::double precision, %(factor)s) as factor,
        coalesce((payload.options -> 'backoff' ->> 'cap')::double precision, %(cap)s) as cap
    from (
        select *
        from pgbroker.job
        where job.status = 3 /* running */
          and job.lease_expires_at > %(since)s
          and job.lease_expires_at <= statement_timestamp()
        order by job.lease_expires_at
        limit %(limit)s
        for no key update skip locked
    ) as job
    left join pgbroker.worker on worker.id = job.worker_id
    left join pgbroker.job_payload as payload on payload.job_id = job.id
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
                    else random() * interval '1 second' * case
                        when expired.base * power(expired.factor, least(attempt_count, 60) - 1) < expired.cap
                            then expired.base * power(expired.factor, least(attempt_count, 60) - 1)
                        else expired.cap
                    end
                end
        end,
        crash_count = crash_count + expired.crashed::int,
        worker_id = null,
        lease_expires_at = null
    from expired
    where job.id = expired.id
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
