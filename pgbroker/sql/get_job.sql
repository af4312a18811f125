-- Read one job with everything that is known about it.
--
--   job_id  uuid  the job
--
-- Scope:  tenant
-- Rows:   one when this tenant has the job: the job, its payload, the name of the worker that runs it and its
--         process (host:pid), why it was ended without an attempt, its run group, and its executions as a JSON array,
--         oldest first.
-- Locks:  none.
-- Index:  job_pkey, execution_job, run_group_pkey.
select
    job.id as job_id,
    job_type.name as job_type,
    queue.name as queue,
    job.tenant_id,
    job.status,
    job.priority,
    job.ready_at,
    job.available_at,
    job.attempt_count,
    job.max_attempts,
    job.crash_count,
    job.worker_id,
    worker.name as worker,
    worker.host || ':' || worker.pid as worker_process,
    job.leased_at,
    job.cancel_requested_at,
    job.deadline_at,
    job.created_at,
    job.finished_at,
    payload.type_version,
    payload.args,
    payload.args_body,
    payload.options,
    payload.idempotency_key,
    payload.correlation_id,
    payload.tags,
    job_state.reason_code,
    job_state.reason,
    job_state.cause_id,
    job.run_group_id,
    run_group.name as run_group,
    job.name,
    coalesce(
        (
            select jsonb_agg(
                jsonb_build_object(
                    'attempt_no', execution.attempt_no,
                    'state', execution.state,
                    'worker_id', execution.worker_id,
                    'started_at', execution.started_at,
                    'completed_at', execution.completed_at,
                    'error_code', execution.error_code,
                    'error', execution.error,
                    'traceback', execution.traceback,
                    'result', execution.result,
                    'result_body', execution.result_body
                )
                order by execution.attempt_no, execution.completed_at
            )
            from pgbroker.execution
            where execution.job_id = job.id
        ),
        '[]'
    ) as executions
from pgbroker.job
join pgbroker.job_payload as payload on payload.job_id = job.id
join pgbroker.queue on queue.id = job.queue_id
join pgbroker.job_type on job_type.id = job.job_type_id
left join pgbroker.job_state on job_state.job_id = job.id
left join pgbroker.worker on worker.id = job.worker_id
left join pgbroker.run_group on run_group.id = job.run_group_id
where job.id = %(job_id)s
