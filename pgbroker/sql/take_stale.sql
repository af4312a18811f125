-- Find schedules whose next tick was worked out by other rules of their time zone.
--
--   time_zone   text    the zone
--   zone_rules  text    its rules as they are known now
--   limit       bigint  most schedules
--
-- Scope:  all
-- Rows:   one per schedule: what take_due returns.
-- Locks:  none: a schedule that changes meanwhile is found out by its revision.
select
    schedule.id, schedule.tenant_id, schedule.name, schedule.expression, schedule.time_zone, schedule.ambiguous,
    schedule.nonexistent, schedule.misfire, schedule.misfire_count, schedule.misfire_window_seconds, schedule.overlap,
    schedule.jitter_seconds, schedule.starts_at, schedule.ends_at, schedule.enabled, schedule.next_run_at,
    schedule.watermark, schedule.buffered_for, schedule.paused_until, schedule.zone_rules, schedule.revision,
    statement_timestamp() as now,
    0::bigint as live,
    false as in_turn
from pgbroker.schedule
where schedule.next_run_at is not null
  and schedule.time_zone = %(time_zone)s
  and schedule.zone_rules <> %(zone_rules)s
order by schedule.id
limit %(limit)s
