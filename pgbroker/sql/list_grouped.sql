-- List the members of a run group, newest first, a page at a time.
--
--   group_id  uuid      the group
--   tag       text      only with this tag; null: with any
--   queue_id  smallint  only of this queue; null: of all
--   type_id   int       only of this type; null: of all
--   status    smallint  only with this status; null: with any
--   after     uuid      the page before ended with this id; null: from the newest on
--   limit     bigint    page size
--
-- Scope:  tenant
-- Rows:   as those of list_jobs.
-- Locks:  none.
-- Index:  job_group.
--
-- A page costs as much as the group has members, whatever else there is. The ids are taken as bytes, in the same order:
-- else the primary key might be read, through all that is newer, or older, than the group.
with page as materialized (
    select job.*
    from pgbroker.job
    where job.run_group_id = %(group_id)s
      and (%(after)s::uuid is null or uuid_send(job.id) < uuid_send(%(after)s::uuid))
      and (%(queue_id)s::smallint is null or job.queue_id = %(queue_id)s::smallint)
      and (%(type_id)s::int is null or job.job_type_id = %(type_id)s::int)
      and (%(status)s::smallint is null or job.status + 0 = %(status)s::smallint)
      and (
          %(tag)s::text is null
          or exists (
              select
              from pgbroker.job_tag
              where job_tag.tag = %(tag)s::text
                and job_tag.tenant_id = job.tenant_id
                and job_tag.job_id = job.id
              offset 0
          )
      )
    order by uuid_send(job.id) desc
    limit %(limit)s
),
named as materialized (
    select run_group.id, run_group.name
    from pgbroker.run_group
    where run_group.id = any (array(select page.run_group_id from page where page.run_group_id is not null))
)
select
    page.id,
    job_type.name as job_type,
    queue.name as queue,
    page.tenant_id,
    page.status,
    page.priority,
    page.attempt_count,
    page.max_attempts,
    page.created_at,
    coalesce(page.available_at, page.ready_at) as due_at,
    page.finished_at,
    coalesce(
        job_state.reason_code,
        (
            select execution.error_code
            from pgbroker.execution
            where execution.job_id = page.id
            order by execution.attempt_no desc, execution.completed_at desc
            limit 1
        )
    ) as error_code,
    named.name as run_group,
    page.name
from page
join pgbroker.queue on queue.id = page.queue_id
join pgbroker.job_type on job_type.id = page.job_type_id
left join pgbroker.job_state on job_state.job_id = page.id
left join named on named.id = page.run_group_id
order by page.id desc
