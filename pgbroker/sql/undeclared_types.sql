-- Find schedules that create jobs of types which this project's code does not declare.
--
--   tenant   text    only of this tenant; null: of all that the scope shows
--   project  text    leave out what another project declares: only its processes know its code
--   known    text[]  the types that the code declares
--   limit    bigint  most schedules
--
-- Scope:  tenant
-- Rows:   one per schedule, by name: its id, tenant and name, and the types that are not declared, in order.
-- Locks:  none.
--
-- It reads the template of every schedule that is enabled: for a person who asks, or a process that starts.
select schedule.id, schedule.tenant_id, schedule.name, found.types
from pgbroker.schedule
cross join lateral (
    select array_agg(distinct entry.job_type order by entry.job_type) as types
    from (
        -- Whatever somebody has written in SQL: what is no object has no type.
        select (each ->> 'job_type') collate "C" as job_type
        from jsonb_array_elements(schedule.template -> 'jobs') as each
    ) as entry
    where entry.job_type <> all (%(known)s::text[])
) as found
where (%(tenant)s::text is null or schedule.tenant_id = %(tenant)s)
  and schedule.enabled
  and (not schedule.declared or schedule.declared_by = %(project)s)
  and found.types is not null
order by schedule.name, schedule.id
limit %(limit)s
