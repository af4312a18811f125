-- Look which schedules have something to be decided: a tick has come, a pause is over, or what waited for another
-- occurrence may start.
--
--   after_at  timestamptz  leave out ticks that come before that instant, or at it ...
--   after_id  uuid         ... up to that schedule
--   limit     bigint       most schedules for each of the three reasons
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per schedule and reason, ticks in their order: what it says and where it stands, the instant of the look,
--         and how many of its occurrences live where that matters.
-- Locks:  none: a schedule that changes meanwhile is found out by its revision.
-- Index:  schedule_due, schedule_pause_ends, schedule_buffered.
with due as (
    select schedule.id, 1 as turn, row_number() over (order by schedule.next_run_at, schedule.id) as place
    from (
        select each.id, each.next_run_at
        from pgbroker.schedule as each
        where each.next_run_at <= statement_timestamp()
          and (each.next_run_at, each.id) > (%(after_at)s::timestamptz, %(after_id)s::uuid)
        order by each.next_run_at, each.id
        limit %(limit)s
    ) as schedule
    union all
    (
        select each.id, 2, 0
        from pgbroker.schedule as each
        where each.paused_until <= statement_timestamp()
        order by each.paused_until, each.id
        limit %(limit)s
    )
    union all
    (
        select each.id, 3, 0
        from pgbroker.schedule as each
        where each.buffered_for is not null
          and each.enabled
          and each.paused_at is null
          and not exists (select from pgbroker.live_runs_1(each.id))
        order by each.id
        limit %(limit)s
    )
)
select
    schedule.id, schedule.tenant_id, schedule.name, schedule.expression, schedule.time_zone, schedule.ambiguous,
    schedule.nonexistent, schedule.misfire, schedule.misfire_count, schedule.misfire_window_seconds, schedule.overlap,
    schedule.jitter_seconds, schedule.starts_at, schedule.ends_at, schedule.enabled, schedule.next_run_at,
    schedule.watermark, schedule.buffered_for, schedule.paused_until, schedule.zone_rules, schedule.revision,
    statement_timestamp() as now,
    (
        select count(*)
        from pgbroker.live_runs_1(schedule.id)
        where schedule.overlap <> 'allow' or schedule.buffered_for is not null
    ) as live,
    due.turn = 1 as in_turn
from due
join pgbroker.schedule on schedule.id = any (array[due.id])
order by due.turn, due.place
