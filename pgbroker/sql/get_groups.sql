-- Read run groups by their ids.
--
--   group_ids  uuid[]  the groups
--
-- Scope:  tenant
-- Rows:   the row of each that this tenant has, as list_groups gives it, by id.
-- Locks:  none.
-- Index:  run_group_pkey.
select
    run_group.id,
    run_group.name,
    run_group.tenant_id,
    run_group.state,
    run_group.tolerate_count,
    run_group.tolerate_percent,
    run_group.on_completed,
    run_group.on_failed,
    run_group.completed_job_id,
    run_group.failed_job_id,
    run_group.callback_error,
    run_group.cancel_requested_at,
    run_group.created_at,
    run_group.sealed_at,
    run_group.finished_at
from pgbroker.run_group
where run_group.id = any (%(group_ids)s::uuid[])
order by run_group.id
