-- List the recorded events of one job, oldest first; of very many the newest.
--
--   job_id  uuid    the job
--   limit   bigint  most events to list
--
-- Scope:  tenant
-- Rows:   event (the status it changed to, or 20: cancel requested), occurred_at, metadata.
-- Locks:  none.
-- Index:  job_event_job.
select event, occurred_at, metadata
from (
    select job_event.id, job_event.event, job_event.occurred_at, job_event.metadata
    from pgbroker.job_event
    where job_event.job_id = %(job_id)s
    order by job_event.id desc
    limit %(limit)s
) as newest
order by occurred_at, id
