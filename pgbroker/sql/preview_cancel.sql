-- Tell what would go along if jobs and run groups were cancelled, as far as edges and groups lead.
--
--   job_ids    uuid[]  jobs that would be cancelled
--   group_ids  uuid[]  groups that would be cancelled, with their live members
--   failing    uuid[]  groups that would fail because of it: what a look before this one has found
--   bound      bigint  look at no more jobs and groups
--   limit      bigint  most to list
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   kind (job, group), id, name, status, fate, the job that would be enqueued for it, and how many there are of
--         that fate and kind, which counts further than what is listed. The fates of jobs: cancelled, blocked, freed (it
--         does not mind); of groups: fails, and unsure: it tolerates some, and would fail by more than that. One row
--         more, of nothing, with the fate cut where the walk came to its bound.
-- Locks:  none.
-- Index:  job_group, job_dependency_prerequisite.
--
-- A job goes along that waits for one which does, unless its edge blocks it or does not mind; a group that tolerates
-- nothing fails with its first member; and so on. What is cancelled itself is not listed.
--
-- offset 0: each step goes from what it has to its row, never from all rows to what it has, whatever statistics say.
with recursive falling (id) as (
    (
        select job.id
        from unnest(%(job_ids)s::uuid[]) as given (id)
        cross join lateral (
            select job.id
            from pgbroker.job
            where job.id = any (array[given.id])
              and job.status in (
                  0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 3 /* running */, 4 /* suspended */, 5 /* blocked */
              )
            offset 0
        ) as job
        union all
        select job.id
        from unnest(%(group_ids)s::uuid[]) as given (id)
        cross join lateral pgbroker.live_members_1(given.id) as job
        union all
        select run_group.id
        from pgbroker.run_group
        where run_group.id = any (%(group_ids)s::uuid[] || %(failing)s::uuid[])
          and run_group.state in (0 /* open */, 1 /* sealed */)
    )
    union
    select next.id
    from falling
    cross join lateral (
        (
            select edge.dependent_id as id
            from (
                select edge.dependent_id, edge.on_failure
                from pgbroker.job_dependency as edge
                where edge.prerequisite_id = any (array[falling.id])
                  and edge.satisfied_at is null
                  and edge.outcome + 0 = 0
                offset 0
            ) as edge
            where edge.on_failure = 0 /* cancel */
              and (
                  (select job.status from pgbroker.job where job.id = any (array[edge.dependent_id]))
                      in (1 /* waiting */, 5 /* blocked */)
                  or (select run_group.state from pgbroker.run_group where run_group.id = any (array[edge.dependent_id]))
                      in (0 /* open */, 1 /* sealed */)
              )
        )
        union all
        select run_group.id
        from (
            select job.run_group_id
            from pgbroker.job
            where job.id = any (array[falling.id])
            offset 0
        ) as member
        cross join lateral (
            select run_group.id
            from pgbroker.run_group
            where run_group.id = any (array[member.run_group_id])
              and run_group.state in (0 /* open */, 1 /* sealed */)
              and run_group.tolerate_count is null
              and run_group.tolerate_percent is null
            offset 0
        ) as run_group
    ) as next
),
-- Without an order or a count: the walk goes only as far as rows are asked for.
reached as materialized (
    select falling.id
    from falling
    limit %(bound)s
),
member as materialized (
    select job.id, job.run_group_id
    from reached
    cross join lateral (
        select job.id, job.run_group_id
        from pgbroker.job
        where job.id = any (array[reached.id])
        offset 0
    ) as job
),
along as (
    select 'job' as kind, member.id, 'cancelled' as fate, null as callback
    from member
    where member.id <> all (%(job_ids)s::uuid[])
      and member.run_group_id <> all (%(group_ids)s::uuid[]) is not false
    union all
    select 'group', failing.id, 'fails', failing.callback
    from reached
    cross join lateral (
        select
            run_group.id,
            case when run_group.failed_job_id is null then run_group.on_failed ->> 'job_type' end as callback
        from pgbroker.run_group
        where run_group.id = any (array[reached.id])
        offset 0
    ) as failing
    where failing.id <> all (%(group_ids)s::uuid[])
    union all
    select 'group', touched.id, 'unsure', null
    from (
        select member.run_group_id as id, count(*) as members
        from member
        where member.run_group_id is not null
          and member.run_group_id not in (select reached.id from reached)
        group by member.run_group_id
    ) as touched
    cross join lateral (
        select run_group.tolerate_count, run_group.tolerate_percent
        from pgbroker.run_group
        where run_group.id = any (array[touched.id])
          and run_group.state in (0 /* open */, 1 /* sealed */)
          and (run_group.tolerate_count is not null or run_group.tolerate_percent is not null)
        offset 0
    ) as policy
    where touched.members + (
            select count(*)
            from pgbroker.bad_members_1(touched.id)
        ) > coalesce(
            policy.tolerate_count,
            floor((select count(*) from pgbroker.job where job.run_group_id = touched.id) * policy.tolerate_percent::numeric / 100)
        )
    union all
    select 'job', held.id, held.fate, null
    from (
        select
            edge.dependent_id as id,
            case when bool_or(edge.on_failure = 1 /* block */) then 'blocked' else 'freed' end as fate
        from reached
        cross join lateral (
            select edge.dependent_id, edge.on_failure
            from pgbroker.job_dependency as edge
            where edge.prerequisite_id = any (array[reached.id])
              and edge.satisfied_at is null
              and edge.outcome + 0 = 0
            offset 0
        ) as edge
        where edge.on_failure in (1 /* block */, 2 /* ignore */)
          and edge.dependent_id not in (select known.id from reached as known)
          and (select job.status from pgbroker.job where job.id = any (array[edge.dependent_id]))
              in (1 /* waiting */, 5 /* blocked */)
        group by edge.dependent_id
    ) as held
    union all
    select null, null, 'cut', null
    where (select count(*) from reached) >= %(bound)s
)
select
    listed.kind,
    listed.id,
    coalesce(
        (
            select coalesce(job.name, job_type.name)
            from pgbroker.job
            join pgbroker.job_type on job_type.id = job.job_type_id
            where job.id = any (array[listed.id])
        ),
        (select run_group.name from pgbroker.run_group where run_group.id = any (array[listed.id]))
    ) as name,
    coalesce(
        (select job.status from pgbroker.job where job.id = any (array[listed.id])),
        (select run_group.state from pgbroker.run_group where run_group.id = any (array[listed.id]))
    ) as status,
    listed.fate,
    listed.callback,
    listed.total
from (
    select
        along.*,
        count(*) over of_its_kind as total,
        row_number() over (of_its_kind order by along.id) as place
    from along
    window of_its_kind as (partition by along.fate, along.kind)
) as listed
where listed.place <= %(limit)s
order by listed.fate, listed.kind, listed.id
