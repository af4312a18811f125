-- Do what was decided about schedules that are due, of all tenants.
--
--   decisions  jsonb    an array, as pgbroker.dispatch_1 takes it
--   patient    boolean  wait for schedules that somebody holds; otherwise they are left for later
--
-- Scope:  all
-- Rows:   one per occurrence: the schedule, its instant, state (created, skipped, buffered, failed, duplicate), job and
--         run group, lateness, error code and error, queues with new ready jobs; of a schedule that has changed since the
--         decision, one of state stale.
-- Locks:  schedule rows in id order, skip locked unless patient; then what an enqueue locks.
select
    answer.schedule_id, answer.scheduled_for, answer.state, answer.job_id, answer.run_group_id,
    answer.lateness_seconds, answer.error_code, answer.error, answer.queues
from pgbroker.dispatch_1(%(decisions)s::jsonb, %(patient)s) as answer
