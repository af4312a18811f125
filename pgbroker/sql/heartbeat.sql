-- Extend the leases of one worker, and tell which of its attempts are asked to stop or are no longer its own.
--
--   worker_id  uuid      who holds the leases
--   job_ids    uuid[]    the jobs, in ascending order
--   tokens     bigint[]  ... the lease token of each attempt
--   lease      interval  how long the leases last from now
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per given attempt: job_id, lease_token, kept (still this worker's), cancel (stop it).
-- Locks:  job rows, skip locked: a row that somebody holds is extended next time. Locked is not lost.
-- Index:  job_pkey.
--
-- A lease that has expired is never extended: the reaper may be looking at it.
with claimed as materialized (
    select
        entry.*,
        %(worker_id)s::uuid as worker_id,
        3::smallint as running
    from unnest(%(job_ids)s::uuid[], %(tokens)s::bigint[]) as entry (job_id, lease_token)
),
own as materialized (
    select job.id
    from claimed
    join pgbroker.job
        on job.id = any (array[claimed.job_id])
        and job.lease_token = claimed.lease_token
        and job.worker_id = claimed.worker_id
        and job.status + 0 = claimed.running
    where job.lease_expires_at > statement_timestamp()
    order by claimed.job_id
    for no key update of job skip locked
),
extended as (
    update pgbroker.job
    set lease_expires_at = statement_timestamp() + %(lease)s
    from own
    where job.id = any (array[own.id])
)
select
    claimed.job_id,
    claimed.lease_token,
    job.id is not null as kept,
    coalesce(job.cancel_requested_at is not null, false) as cancel
from claimed
left join pgbroker.job
    on job.id = any (array[claimed.job_id])
    and job.lease_token = claimed.lease_token
    and job.worker_id = claimed.worker_id
    and job.status + 0 = claimed.running
    and job.lease_expires_at > statement_timestamp()
