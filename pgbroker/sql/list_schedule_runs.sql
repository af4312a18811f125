-- List what became of a schedule's ticks, the latest first.
--
--   schedule_id  uuid         the schedule
--   since        timestamptz  from this instant on
--   before       timestamptz  before that one
--   limit        bigint       most rows
--
-- Scope:  tenant
-- Rows:   one per run: its instant, kind, state, job and run group, when it was created, lateness, error code and error.
-- Locks:  none.
select
    run.schedule_id, run.scheduled_for, run.kind, run.state, run.job_id, run.run_group_id, run.created_at,
    run.lateness_seconds, run.error_code, run.error
from pgbroker.schedule_run as run
where run.schedule_id = %(schedule_id)s
  and run.scheduled_for >= %(since)s
  and run.scheduled_for < %(before)s
order by run.scheduled_for desc
limit %(limit)s
