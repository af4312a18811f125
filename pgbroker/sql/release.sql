-- Hand a batch of claimed jobs back unharmed: running -> ready, or scheduled after a delay.
--
--   worker_id  uuid        who held the leases
--   job_ids    uuid[]      the jobs, in ascending order
--   tokens     bigint[]    ... the lease token of each attempt
--   delays     interval[]  ... null: ready at once; otherwise scheduled after it
--   code       text        why, as it stands in the history
--
-- Scope:  all
-- Plan:   hot
-- Rows:   job_id, lease_token and the new status of each attempt that was still its worker's.
-- Locks:  job rows, in id order.
-- Index:  job_pkey.
--
-- Nothing is burned: the attempt that was counted is granted again. The fence as in settle.sql. A job that
-- was asked to cancel meanwhile is not handed on; it stays for settle to cancel.
with outcome as materialized (
    select
        entry.*,
        %(worker_id)s::uuid as worker_id,
        3::smallint as running
    from unnest(
        %(job_ids)s::uuid[],
        %(tokens)s::bigint[],
        %(delays)s::interval[]
    ) as entry (job_id, lease_token, delay)
),
held as materialized (
    select job.id, outcome.*
    from outcome
    join pgbroker.job
        on job.id = any (array[outcome.job_id])
        and job.lease_token = outcome.lease_token
        and job.worker_id = outcome.worker_id
        and job.status + 0 = outcome.running
    where job.cancel_requested_at is null
    order by outcome.job_id
    for no key update of job
),
placed as (
    select held.*, row_number() over (order by held.id) as place
    from held
),
released as (
    update pgbroker.job
    set status = case when placed.delay is null then 2 /* ready */ else 0 /* scheduled */ end,
        ready_at = case
            when placed.delay is null then statement_timestamp() + placed.place * interval '1 microsecond'
        end,
        available_at = statement_timestamp() + placed.delay,
        max_attempts = max_attempts + 1,
        worker_id = null,
        lease_expires_at = null
    from placed
    where job.id = any (array[placed.id])
    returning
        job.id, job.tenant_id, job.attempt_count, job.status, job.leased_at, placed.lease_token,
        placed.worker_id
),
ended as (
    insert into pgbroker.execution (job_id, tenant_id, attempt_no, state, worker_id, started_at, error_code)
    select id, tenant_id, attempt_count, 7 /* released */, worker_id, leased_at, %(code)s::text
    from released
)
select id as job_id, lease_token, status
from released
