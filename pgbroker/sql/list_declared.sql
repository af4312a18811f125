-- List the schedules that a project has declared, and whoever has a name that it declares.
--
--   project   text    the project
--   tenants   text[]  of what it declares now, the tenants ...
--   names     text[]  ... and the names
--   after_id  uuid    only ids after this one
--   limit     bigint  most rows
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per schedule, by id: what list_schedules returns.
-- Locks:  none.
-- Index:  schedule_declared, schedule_name_unique, schedule_pkey.
with wanted as materialized (
    select schedule.id
    from pgbroker.schedule
    where schedule.declared
      and schedule.declared_by = %(project)s
    union
    select schedule.id
    from unnest(%(tenants)s::text[], %(names)s::text[]) as said (tenant, name)
    join pgbroker.schedule on schedule.tenant_id = said.tenant
                          and schedule.name = said.name
)
select
    schedule.id, schedule.tenant_id, schedule.name, schedule.expression, schedule.time_zone, schedule.template,
    schedule.ambiguous, schedule.nonexistent, schedule.misfire, schedule.misfire_count, schedule.misfire_window_seconds,
    schedule.overlap, schedule.jitter_seconds, schedule.starts_at, schedule.ends_at, schedule.enabled,
    schedule.disabled_reason, schedule.paused_at, schedule.paused_until, schedule.paused_by, schedule.pause_reason,
    schedule.next_run_at, schedule.watermark, schedule.buffered_for, schedule.last_dispatched_for,
    schedule.last_dispatched_at, schedule.zone_rules, schedule.declared, schedule.declared_by, schedule.declaration, schedule.revision,
    schedule.failure_count, schedule.failed_at, schedule.error_code, schedule.error, schedule.forgotten_until,
    schedule.created_at, schedule.updated_at, statement_timestamp() as now
from wanted
join pgbroker.schedule on schedule.id = any (array[wanted.id])
where wanted.id > %(after_id)s
order by wanted.id
limit %(limit)s
