-- Count the members of a run group by level and status: how many jobs in a row each waits for.
--
--   group_id  uuid    the group
--   bound     bigint  look at no more members
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   level (0: it waits for nothing), status, how many.
-- Locks:  none.
-- Index:  job_group, job_dependency_pkey.
select
    coalesce(deepest.level, 0) as level,
    member.status,
    count(*) as members
from (
    select job.id, job.status
    from pgbroker.job
    where job.run_group_id = %(group_id)s
    limit %(bound)s
) as member
cross join lateral (
    select max(edge.level) as level
    from pgbroker.job_dependency as edge
    where edge.dependent_id = any (array[member.id])
) as deepest
group by 1, 2
order by 1, 2
