-- List jobs, newest first, a page at a time.
--
--   tenant     text      only this tenant's; null: of all that the scope shows
--   queue_id   smallint  only of this queue; null: of all
--   type_id    int       only of this type; null: of all
--   status     smallint  only with this status; null: with any
--   after      uuid      the page before ended with this id; null: from the newest on
--   limit      bigint    page size
--
-- Scope:  tenant
-- Rows:   id, job_type, queue, tenant_id, status, priority, attempt_count, max_attempts, created_at, when it is or
--         was due, finished_at, the code of what went wrong last, the name of its run group and its own in it.
-- Locks:  none.
-- Index:  job_payload_tenant or job_pkey, backwards; those of a status where few jobs have it.
--
-- An id begins with the time at which it was made, so its order is that of time, near enough for a list.
-- Of the two halves one is empty, before it is planned: one tenant's jobs are found by their arguments, which are written
-- once, so that no claim and no settle pays for it. Those that are scheduled, running, blocked, or ended otherwise than
-- they should are few, and have indexes of their own. Names of run groups are looked up once for the page, each once.
with page as materialized (
    (
        select job.*
        from pgbroker.job
        where (
              %(tenant)s::text is null
              or (%(status)s::smallint in (0, 3, 5, 11, 12, 13)) is true and job.tenant_id = %(tenant)s::text
          )
          and (%(queue_id)s::smallint is null or job.queue_id = %(queue_id)s::smallint)
          and (%(type_id)s::int is null or job.job_type_id = %(type_id)s::int)
          and (%(status)s::smallint is null or job.status = %(status)s::smallint)
          and (%(after)s::uuid is null or job.id < %(after)s::uuid)
        order by job.id desc
        limit %(limit)s
    )
    union all
    (
        select job.*
        from pgbroker.job_payload as payload
        cross join lateral (
            select job.*
            from pgbroker.job
            where job.id = any (array[payload.job_id])
            offset 0
        ) as job
        where payload.tenant_id = %(tenant)s::text
          and (%(status)s::smallint in (0, 3, 5, 11, 12, 13)) is not true
          and (%(after)s::uuid is null or payload.job_id < %(after)s::uuid)
          and (%(queue_id)s::smallint is null or job.queue_id = %(queue_id)s::smallint)
          and (%(type_id)s::int is null or job.job_type_id = %(type_id)s::int)
          and (%(status)s::smallint is null or job.status = %(status)s::smallint)
        order by uuid_send(payload.job_id) desc
        limit %(limit)s
    )
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
