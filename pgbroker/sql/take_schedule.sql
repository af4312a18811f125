-- Hold a schedule for whoever changes it, and read where it stands.
--
--   schedule_id  uuid  the schedule
--
-- Scope:  tenant
-- Rows:   one, none where this tenant has no such schedule: what take_due returns.
-- Locks:  the schedule's row: until the end of the transaction no pass decides about it.
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
    true as in_turn
from pgbroker.schedule
where schedule.id = %(schedule_id)s
for no key update of schedule
