-- Tell how many schedules stand still, and how far behind the others are, cheaply: every count stops at a bound.
--
--   bound  bigint  count no further
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one: how many are disabled and how many are paused (together at most bound), and for how many seconds the
--         tick that is due longest has waited (0: none is due).
-- Locks:  none.
-- Index:  schedule_stopped, schedule_due.
with stopped as materialized (
    select schedule.enabled
    from pgbroker.schedule
    where not schedule.enabled
       or schedule.paused_at is not null
    order by schedule.id
    limit %(bound)s
)
select
    (select count(*) from stopped where not stopped.enabled) as disabled,
    (select count(*) from stopped where stopped.enabled) as paused,
    coalesce(
        (
            select extract(epoch from statement_timestamp() - each.next_run_at)::double precision
            from pgbroker.schedule as each
            where each.next_run_at <= statement_timestamp()
            order by each.next_run_at, each.id
            limit 1
        ),
        0
    ) as overdue_seconds
