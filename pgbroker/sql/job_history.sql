-- List the ended attempts of one job, oldest first; of very many the newest.
--
--   job_id  uuid    the job
--   limit   bigint  most attempts to list
--
-- Scope:  tenant
-- Rows:   attempt_no, state, worker_id, worker (its name and process, where it is known), started_at, completed_at,
--         duration_seconds, error_code, error, traceback, result, result_body, log_tail.
-- Locks:  none.
-- Index:  execution_job.
with newest as materialized (
    select execution.*
    from pgbroker.execution
    where execution.job_id = %(job_id)s
    order by execution.attempt_no desc, execution.completed_at desc
    limit %(limit)s
)
select
    newest.attempt_no,
    newest.state,
    newest.worker_id,
    worker.name as worker,
    newest.started_at,
    newest.completed_at,
    newest.duration_seconds,
    newest.error_code,
    newest.error,
    newest.traceback,
    newest.result,
    newest.result_body,
    newest.log_tail
from newest
left join pgbroker.worker on worker.id = newest.worker_id
order by newest.attempt_no, newest.completed_at
