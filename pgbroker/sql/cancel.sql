-- Cancel jobs: any live status but running -> cancelled; a running one gets a request.
--
--   job_ids  uuid[]  the jobs
--   reason   text    why, for whoever looks later
--   by       text    who asked
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   one per job this tenant has: job_id, outcome (cancelled, requested, unchanged), status and worker_id
--         from before.
-- Locks:  job rows, in id order.
-- Index:  job_pkey.
with wanted as materialized (
    select job.id, job.status, job.worker_id, job.cancel_requested_at
    from pgbroker.job
    where job.id = any (%(job_ids)s::uuid[])
    order by job.id
    for no key update
),
cancelled as (
    update pgbroker.job
    set status = 13 /* cancelled */,
        finished_at = statement_timestamp()
    from wanted
    where job.id = any (array[wanted.id])
      and wanted.status in (0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 4 /* suspended */, 5 /* blocked */)
    returning job.id, job.tenant_id
),
requested as (
    update pgbroker.job
    set cancel_requested_at = statement_timestamp()
    from wanted
    where job.id = any (array[wanted.id])
      and wanted.status = 3 /* running */
      and wanted.cancel_requested_at is null
    returning job.id, job.tenant_id
),
explained as (
    insert into pgbroker.job_state (job_id, tenant_id, reason_code, reason, by)
    select id, tenant_id, 'cancelled', %(reason)s::text, %(by)s::text
    from (select * from cancelled union all select * from requested) as touched
    on conflict (job_id) do update
    set reason_code = excluded.reason_code,
        reason = excluded.reason,
        by = excluded.by,
        cause_id = null,
        changed_at = statement_timestamp()
)
select
    wanted.id as job_id,
    case
        when cancelled.id is not null then 'cancelled'
        when wanted.status = 3 /* running */ then 'requested'
        else 'unchanged'
    end as outcome,
    wanted.status,
    wanted.worker_id
from wanted
left join cancelled on cancelled.id = wanted.id
