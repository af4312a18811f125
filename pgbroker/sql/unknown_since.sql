-- Tell since when jobs were put back because no worker knew their type, and how often.
--
--   job_ids  uuid[]  the jobs
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per job that was put back before: job_id, seconds since the first time, how often.
-- Locks:  none.
-- Index:  execution_job.
select
    execution.job_id,
    extract(epoch from statement_timestamp() - min(execution.completed_at))::double precision as seconds,
    count(*)
from unnest(%(job_ids)s::uuid[]) as job (id)
join pgbroker.execution on execution.job_id = job.id
where execution.error_code = 'unknown_job_type'
group by execution.job_id
