-- Pause a queue, a job type, a tenant, or a tenant in a queue; a second pause replaces the first.
--
--   kind      text      queue, job_type, tenant or queue_tenant
--   queue     text      name of the queue, or null
--   job_type  text      name of the type, or null
--   tenant    text      tenant id, or null
--   duration  interval  how long; null: until resumed
--   by        text      who
--   reason    text      why
--
-- Scope:  none
-- Rows:   the pause: id, until. None when the queue or the type does not exist.
-- Locks:  the pause row.
insert into pgbroker.pause as pause (kind, queue_id, job_type_id, tenant, until, by, reason)
select
    %(kind)s::text,
    queue.id,
    job_type.id,
    %(tenant)s::text,
    statement_timestamp() + %(duration)s::interval,
    %(by)s::text,
    %(reason)s::text
from (values (1)) as one
left join pgbroker.queue on queue.name = %(queue)s::text
left join pgbroker.job_type on job_type.name = %(job_type)s::text
where (queue.id is not null) = (%(queue)s::text is not null)
  and (job_type.id is not null) = (%(job_type)s::text is not null)
on conflict (queue_id, job_type_id, tenant) do update
set until = excluded.until,
    by = excluded.by,
    reason = excluded.reason,
    paused_at = statement_timestamp()
returning id, until
