-- List schedules by name.
--
--   tenant       text    only of this tenant; null: of all that the scope shows
--   schedule_id  uuid    only this one; null: any
--   name         text    only of this name; null: any
--   after_name   text    names after this one ...
--   after_id     uuid    ... or the same, and an id after this one
--   limit        bigint  most rows
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   one per schedule, with all that it says and where it stands, and the instant of the look.
-- Locks:  none.
-- Index:  schedule_name, schedule_name_unique, schedule_pkey.
select
    schedule.id, schedule.tenant_id, schedule.name, schedule.expression, schedule.time_zone, schedule.template,
    schedule.ambiguous, schedule.nonexistent, schedule.misfire, schedule.misfire_count, schedule.misfire_window_seconds,
    schedule.overlap, schedule.jitter_seconds, schedule.starts_at, schedule.ends_at, schedule.enabled,
    schedule.disabled_reason, schedule.paused_at, schedule.paused_until, schedule.paused_by, schedule.pause_reason,
    schedule.next_run_at, schedule.watermark, schedule.buffered_for, schedule.last_dispatched_for,
    schedule.last_dispatched_at, schedule.zone_rules, schedule.declared, schedule.declared_by, schedule.declaration, schedule.revision,
    schedule.failure_count, schedule.failed_at, schedule.error_code, schedule.error, schedule.forgotten_until,
    schedule.created_at, schedule.updated_at, statement_timestamp() as now
from pgbroker.schedule
where (%(tenant)s::text is null or schedule.tenant_id = %(tenant)s)
  and (%(schedule_id)s::uuid is null or schedule.id = %(schedule_id)s)
  and (%(name)s::text is null or schedule.name = %(name)s)
  and (schedule.name, schedule.id) > (%(after_name)s::text collate "C", %(after_id)s::uuid)
order by schedule.name, schedule.id
limit %(limit)s
