-- End live jobs that passed their deadline before they ran: any live status but running -> failed.
--
--   within  interval  look only at deadlines that passed so long ago; a hint
--   skip    bigint    leave so many of them alone, the first: a page with them has failed
--   limit   bigint    most jobs to end
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per ended job: job_id, tenant_id, queue_id, job_type_id.
-- Locks:  job rows, skip locked.
-- Index:  job_deadline.
with overdue as materialized (
    select job.id
    from pgbroker.job
    where job.status in (0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 4 /* suspended */, 5 /* blocked */)
      and job.deadline_at is not null
      and job.deadline_at > statement_timestamp() - %(within)s::interval
      and job.deadline_at <= statement_timestamp()
    order by job.deadline_at
    offset %(skip)s
    limit %(limit)s
    for no key update skip locked
),
expired as (
    update pgbroker.job
    set status = 11 /* failed */,
        finished_at = statement_timestamp()
    from overdue
    where job.id = any (array[overdue.id])
    returning job.id, job.tenant_id, job.queue_id, job.job_type_id
),
explained as (
    insert into pgbroker.job_state (job_id, tenant_id, reason_code, reason)
    select id, tenant_id, 'deadline_exceeded', 'the deadline passed before the job ran'
    from expired
    on conflict (job_id) do update
    set reason_code = excluded.reason_code,
        reason = excluded.reason,
        by = '',
        cause_id = null,
        changed_at = statement_timestamp()
)
select id as job_id, tenant_id, queue_id, job_type_id
from expired
