-- Say anew whether a schedule that is held runs, and from when on.
--
--   schedule_id      uuid         the schedule
--   enabled          boolean      whether it runs at all
--   disabled_reason  text         why it does not
--   paused           boolean      whether it is paused
--   paused_until     timestamptz  until when; null: until somebody resumes it
--   paused_by        text         who asked for that
--   pause_reason     text         and why
--   watermark        timestamptz  up to which instant its ticks have been decided upon
--   next_run_at      timestamptz  the first tick after that; null where none is to come
--   zone_rules       text         the rules of its zone that the tick was worked out by
--
-- Scope:  tenant
-- Rows:   one, none where this tenant has no such schedule.
-- Locks:  the schedule's row.
update pgbroker.schedule
set enabled = %(enabled)s,
    disabled_reason = %(disabled_reason)s,
    paused_at = case when %(paused)s then coalesce(schedule.paused_at, statement_timestamp()) end,
    paused_until = %(paused_until)s,
    paused_by = %(paused_by)s,
    pause_reason = %(pause_reason)s,
    watermark = %(watermark)s,
    next_run_at = %(next_run_at)s,
    zone_rules = %(zone_rules)s,
    revision = schedule.revision + 1,
    updated_at = statement_timestamp()
where schedule.id = %(schedule_id)s
returning schedule.id
