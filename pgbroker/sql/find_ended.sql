-- Find ended jobs by filter, oldest end first: what a redrive takes next.
--
--   status      smallint     11 failed, 12 dead_letter or 13 cancelled
--   queue       text         only of this queue; null: of all
--   job_type    text         only of this type; null: of all
--   tag         text         only with this tag; null: with any or none
--   error_code  text         only where the last attempt ended with it; null: with any
--   after       timestamptz  the page before ended here
--   after_id    uuid         ... with this id
--   before      timestamptz  only jobs that ended before it: what ends meanwhile is not taken again
--   limit       bigint       page size
--
-- Scope:  tenant
-- Rows:   job_id, finished_at.
-- Locks:  none.
-- Index:  job_gone_wrong, job_tag_pkey.
select job.id as job_id, job.finished_at
from pgbroker.job
join pgbroker.queue on queue.id = job.queue_id
join pgbroker.job_type on job_type.id = job.job_type_id
where job.status = %(status)s::smallint
  and job.status in (11 /* failed */, 12 /* dead_letter */, 13 /* cancelled */)
  and (job.finished_at, job.id) > (%(after)s::timestamptz, %(after_id)s::uuid)
  and job.finished_at < %(before)s::timestamptz
  and (%(queue)s::text is null or queue.name = %(queue)s)
  and (%(job_type)s::text is null or job_type.name = %(job_type)s)
  and (
      %(tag)s::text is null
      or exists (
          select
          from pgbroker.job_tag
          where job_tag.tag = %(tag)s
            and job_tag.tenant_id = job.tenant_id
            and job_tag.job_id = job.id
      )
  )
  and (
      %(error_code)s::text is null
      or %(error_code)s = (
          select execution.error_code
          from pgbroker.execution
          where execution.job_id = job.id
          order by execution.attempt_no desc
          limit 1
      )
  )
order by job.finished_at, job.id
limit %(limit)s
