-- List the pauses in force, with names.
--
-- Scope:  none
-- Rows:   kind, queue, job_type, tenant (what is null does not limit the pause), paused_at, until, by, reason.
-- Locks:  none.
select
    pause.kind,
    queue.name as queue,
    job_type.name as job_type,
    pause.tenant,
    pause.paused_at,
    pause.until,
    pause.by,
    pause.reason
from pgbroker.pause
left join pgbroker.queue on queue.id = pause.queue_id
left join pgbroker.job_type on job_type.id = pause.job_type_id
where pause.until is null
   or pause.until > statement_timestamp()
order by pause.paused_at
