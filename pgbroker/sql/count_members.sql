-- Count the members of run groups by status; every count stops at a bound.
--
--   group_ids  uuid[]  the groups
--   bound      bigint  count no further
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   group_id, status, how many; none of a status that no member has.
-- Locks:  none.
-- Index:  job_group.
select asked.group_id, each.status, counted.members
from unnest(%(group_ids)s::uuid[]) as asked (group_id)
cross join unnest('{0, 1, 2, 3, 4, 5, 10, 11, 12, 13}'::smallint[]) as each (status)
cross join lateral (
    select count(*) as members
    from (
        select
        from pgbroker.job
        where job.run_group_id = asked.group_id
          and job.status = each.status
        limit %(bound)s
    ) as few
) as counted
where counted.members > 0
