-- Count the members of a run group by status.
--
--   group_id  uuid  the group
--
-- Scope:  tenant
-- Rows:   one when this tenant has the group: what it is, and an object with the number of members of each status.
-- Locks:  none.
-- Index:  run_group_pkey, job_group.
select
    run_group.name,
    run_group.state,
    run_group.tolerate_count,
    run_group.tolerate_percent,
    run_group.created_at,
    run_group.sealed_at,
    run_group.finished_at,
    run_group.completed_job_id,
    run_group.failed_job_id,
    run_group.callback_error,
    coalesce(
        (
            select jsonb_object_agg(counted.status, counted.members)
            from (
                select job.status, count(*) as members
                from pgbroker.job
                where job.run_group_id = run_group.id
                group by job.status
            ) as counted
        ),
        '{}'
    ) as members
from pgbroker.run_group
where run_group.id = %(group_id)s
