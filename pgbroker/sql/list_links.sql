-- List what a job or a run group waits for, and what waits for it.
--
--   id     uuid    the job or the group
--   limit  bigint  most to list on either side
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   is_dependent (it waits for the one that was asked about), kind (job, group), id, name, its status or state
--         (null: it is not there any more), on_failure, outcome, satisfied_at, and of a reference to what is still to
--         come its deadline. Of each side what is not settled first.
-- Locks:  none.
-- Index:  job_dependency_pkey, job_dependency_prerequisite.
--
-- What is another tenant's, whatever a row may claim, comes without name and id.
with edge as materialized (
    (
        select
            false as is_dependent, edge.prerequisite_id as other_id, edge.tenant_id, edge.on_failure, edge.outcome,
            edge.satisfied_at
        from pgbroker.job_dependency as edge
        where edge.dependent_id = %(id)s
        order by edge.satisfied_at is not null, edge.outcome desc, edge.prerequisite_id
        limit %(limit)s
    )
    union all
    (
        select true, edge.dependent_id, edge.tenant_id, edge.on_failure, edge.outcome, edge.satisfied_at
        from pgbroker.job_dependency as edge
        where edge.prerequisite_id = %(id)s
        order by edge.satisfied_at, edge.outcome, edge.dependent_id
        limit %(limit)s
    )
)
select
    edge.is_dependent,
    coalesce(other.kind, 'gone') as kind,
    other.id,
    other.name,
    other.status,
    edge.on_failure,
    edge.outcome,
    edge.satisfied_at,
    null::timestamptz as deadline_at
from edge
left join lateral (
    select
        'job' as kind,
        job.id,
        concat_ws(
            ' ',
            job_type.name,
            (select run_group.name || '/' || job.name from pgbroker.run_group where run_group.id = any (array[job.run_group_id]))
        ) as name,
        job.status
    from pgbroker.job
    join pgbroker.job_type on job_type.id = job.job_type_id
    where job.id = any (array[edge.other_id])
      and job.tenant_id || '' = edge.tenant_id
    union all
    select 'group', run_group.id, run_group.name, run_group.state
    from pgbroker.run_group
    where run_group.id = any (array[edge.other_id])
      and run_group.tenant_id = edge.tenant_id
) as other on true
union all
(
    select
        false,
        'reference',
        null,
        concat_ws('/', deferred.group_name, deferred.job_name),
        null,
        deferred.on_failure,
        0::smallint,
        null,
        deferred.deadline_at
    from pgbroker.deferred_reference as deferred
    where deferred.dependent_id = %(id)s
    order by deferred.deadline_at
    limit %(limit)s
)
