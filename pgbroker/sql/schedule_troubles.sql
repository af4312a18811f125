-- Tell which schedules do not do what they say: overdue, failing, or disabled since they could not be read.
--
--   tenant  text      only this tenant's; null: of all that the scope shows
--   grace   interval  a tick that is later than that is overdue
--   bound   bigint    most schedules for each of the three reasons
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   name, tenant_id, trouble (overdue, failing, disabled), for how many seconds (of one that fails: since it did so
--         last; of one that is disabled: null), how often it failed in a row, and the error. One row a schedule: those
--         that are overdue first, the longest on top, the others by id.
-- Locks:  none.
-- Index:  schedule_due, schedule_failing, schedule_unreadable.
--
-- Each bound counts what the tenant sees. "is true" keeps a tenant's index away, which would be read for every schedule
-- of that tenant.
select troubled.name, troubled.tenant_id, troubled.trouble, troubled.seconds, troubled.times, troubled.error
from (
    (
        select
            schedule.name,
            schedule.tenant_id,
            'overdue' as trouble,
            extract(epoch from statement_timestamp() - schedule.next_run_at)::double precision as seconds,
            schedule.failure_count as times,
            coalesce(schedule.error_code, schedule.error, '') as error,
            1 as turn,
            schedule.next_run_at as since,
            schedule.id
        from pgbroker.schedule
        where schedule.next_run_at < statement_timestamp() - %(grace)s::interval
          and (%(tenant)s::text is null or schedule.tenant_id = %(tenant)s) is true
        order by schedule.next_run_at, schedule.id
        limit %(bound)s
    )
    union all
    (
        select
            schedule.name,
            schedule.tenant_id,
            'failing',
            extract(epoch from statement_timestamp() - schedule.failed_at)::double precision,
            schedule.failure_count,
            coalesce(schedule.error_code, schedule.error, ''),
            2,
            null,
            schedule.id
        from pgbroker.schedule
        where schedule.failure_count > 0
          and (schedule.enabled and schedule.paused_at is null) is true
          and (schedule.next_run_at < statement_timestamp() - %(grace)s::interval) is not true
          and (%(tenant)s::text is null or schedule.tenant_id = %(tenant)s) is true
        order by schedule.id
        limit %(bound)s
    )
    union all
    (
        select
            schedule.name,
            schedule.tenant_id,
            'disabled',
            null,
            schedule.failure_count,
            schedule.disabled_reason,
            3,
            null,
            schedule.id
        from pgbroker.schedule
        where not schedule.enabled
          and schedule.disabled_reason ~ '^\[[a-z_]+\] '
          and (%(tenant)s::text is null or schedule.tenant_id = %(tenant)s) is true
        order by schedule.id
        limit %(bound)s
    )
) as troubled
order by troubled.turn, troubled.since, troubled.id
