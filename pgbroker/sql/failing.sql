-- Tell what fails most, of the newest failed attempts: by type and error code, the most frequent first.
--
--   tenant  text      only this tenant's jobs; null: of all that the scope shows
--   since   interval  leave out what ended longer ago
--   bound   bigint    look at no more attempts, the newest
--   limit   bigint    most lines to list
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   job_type, error_code (null: none was told), state of the newest attempt, times, and the seconds since the
--         newest of them.
-- Locks:  none.
-- Index:  execution_failed, job_pkey.
with newest as materialized (
    select
        execution.job_id,
        execution.state,
        execution.error_code,
        execution.completed_at
    from pgbroker.execution
    where execution.state in (2 /* failed */, 3 /* timed_out */, 5 /* lease_expired */, 6 /* crashed */)
      and execution.completed_at > statement_timestamp() - %(since)s::interval
      and (%(tenant)s::text is null or execution.tenant_id = %(tenant)s::text)
    order by execution.completed_at desc
    limit %(bound)s
)
select
    job_type.name as job_type,
    newest.error_code,
    (array_agg(newest.state order by newest.completed_at desc))[1] as state,
    count(*) as times,
    extract(epoch from statement_timestamp() - max(newest.completed_at))::double precision as last_seconds
from newest
join pgbroker.job on job.id = newest.job_id
join pgbroker.job_type on job_type.id = job.job_type_id
group by job_type.name, newest.error_code
order by count(*) desc, max(newest.completed_at) desc, job_type.name
limit %(limit)s
