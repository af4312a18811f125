-- End a pause.
--
--   kind      text  queue, job_type, tenant or queue_tenant
--   queue     text  name of the queue, or null
--   job_type  text  name of the type, or null
--   tenant    text  tenant id, or null
--
-- Scope:  none
-- Rows:   the ended pause: id and its queue_id; none when nothing was paused.
-- Locks:  the pause row.
delete from pgbroker.pause
where kind = %(kind)s
  and queue_id is not distinct from (select id from pgbroker.queue where name = %(queue)s::text)
  and job_type_id is not distinct from (select id from pgbroker.job_type where name = %(job_type)s::text)
  and tenant is not distinct from %(tenant)s::text
returning id, queue_id
