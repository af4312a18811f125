-- Store a schedule of the current tenant: a new one, or in place of what the one of that name says.
--
--   schedule_id             uuid              the id of a new one
--   name                    text              its name, unique in the tenant
--   expression              text              when it fires
--   time_zone               text              on the clock of this zone
--   template                jsonb             what it creates
--   ambiguous               text              what becomes of times that the clock shows twice
--   nonexistent             text              ... and of times that it skips
--   misfire                 text              what becomes of ticks that are seen late
--   misfire_count           integer           how many are made up for at most
--   misfire_window_seconds  double precision  how old they may be
--   overlap                 text              what becomes of a tick while another occurrence runs
--   jitter_seconds          double precision  how long a job may wait at most
--   starts_at               timestamptz       no tick before that
--   ends_at                 timestamptz       no tick after that
--   enabled                 boolean           whether it runs
--   declared                boolean           whether the code says it
--   declared_by             text              the project whose code that is; of others it stays as it is
--   declaration             text              what the code said; of others it stays as it is
--   watermark               timestamptz       up to which instant its ticks have been decided upon
--   next_run_at             timestamptz       the first tick after that; null where none is to come, or the schedule is paused
--   zone_rules              text              the rules of its zone that the tick was worked out by
--
-- Scope:  tenant
-- Rows:   one: the schedule's id, and whether it is new.
-- Locks:  the schedule's row.
insert into pgbroker.schedule as known (
    id, name, expression, time_zone, template, ambiguous, nonexistent, misfire, misfire_count,
    misfire_window_seconds, overlap, jitter_seconds, starts_at, ends_at, enabled, declared, declared_by, declaration, watermark, next_run_at, zone_rules
)
values (
    %(schedule_id)s, %(name)s, %(expression)s, %(time_zone)s, %(template)s::jsonb, %(ambiguous)s, %(nonexistent)s, %(misfire)s, %(misfire_count)s,
    %(misfire_window_seconds)s, %(overlap)s, %(jitter_seconds)s, %(starts_at)s, %(ends_at)s, %(enabled)s, %(declared)s, %(declared_by)s, %(declaration)s, %(watermark)s, %(next_run_at)s, %(zone_rules)s
)
on conflict on constraint schedule_name_unique do update
set expression = excluded.expression,
    time_zone = excluded.time_zone,
    template = excluded.template,
    ambiguous = excluded.ambiguous,
    nonexistent = excluded.nonexistent,
    misfire = excluded.misfire,
    misfire_count = excluded.misfire_count,
    misfire_window_seconds = excluded.misfire_window_seconds,
    overlap = excluded.overlap,
    jitter_seconds = excluded.jitter_seconds,
    starts_at = excluded.starts_at,
    ends_at = excluded.ends_at,
    enabled = excluded.enabled,
    disabled_reason = case when excluded.enabled then '' else known.disabled_reason end,
    declared = known.declared or excluded.declared,
    declared_by = case when excluded.declared then excluded.declared_by else known.declared_by end,
    declaration = case when excluded.declared then excluded.declaration else known.declaration end,
    watermark = excluded.watermark,
    next_run_at = excluded.next_run_at,
    zone_rules = excluded.zone_rules,
    failure_count = known.failure_count * (excluded.template = known.template)::int,
    error_code = case when excluded.template = known.template then known.error_code end,
    error = case when excluded.template = known.template then known.error end,
    revision = known.revision + 1,
    updated_at = statement_timestamp()
returning known.id, known.revision = 0 as is_new
