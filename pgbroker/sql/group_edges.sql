-- List what the members of a run group wait for, or waited for.
--
--   group_id  uuid    the group
--   limit     bigint  most edges
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   dependent_id, prerequisite_id, on_failure, outcome, whether it is satisfied; and of a prerequisite that is no
--         member: job or group, its name, its status or state. Null where it is a member, or not there any more.
-- Locks:  none.
-- Index:  job_group, job_dependency_pkey.
with edge as materialized (
    select edge.*, member.run_group_id
    from (select job.id, job.run_group_id from pgbroker.job where job.run_group_id = %(group_id)s offset 0) as member
    join pgbroker.job_dependency as edge on edge.dependent_id = any (array[member.id])
    order by edge.dependent_id, edge.prerequisite_id
    limit %(limit)s
)
select
    edge.dependent_id,
    edge.prerequisite_id,
    edge.on_failure,
    edge.outcome,
    edge.satisfied_at is not null as is_satisfied,
    outside.kind,
    outside.name,
    outside.status
from edge
left join lateral (
    select
        'job' as kind,
        coalesce(
            (
                select run_group.name || '/' || job.name
                from pgbroker.run_group
                where run_group.id = any (array[job.run_group_id])
            ),
            job_type.name
        ) as name,
        job.status
    from pgbroker.job
    join pgbroker.job_type on job_type.id = job.job_type_id
    where job.id = any (array[edge.prerequisite_id])
      and job.tenant_id || '' = edge.tenant_id
      and job.run_group_id is distinct from edge.run_group_id
    union all
    select 'group', run_group.name, run_group.state
    from pgbroker.run_group
    where run_group.id = any (array[edge.prerequisite_id])
      and run_group.tenant_id = edge.tenant_id
) as outside on true
order by edge.dependent_id, edge.prerequisite_id
