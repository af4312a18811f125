-- List the jobs that have a tag, newest first, a page at a time.
--
--   tag        text      the tag
--   tenant     text      only this tenant's; null: of all that the scope shows
--   queue_id   smallint  only of this queue; null: of all
--   type_id    int       only of this type; null: of all
--   status     smallint  only with this status; null: with any
--   after      uuid      the page before ended with this id; null: from the newest on
--   limit      bigint    page size
--
-- Scope:  tenant
-- Rows:   as those of list_jobs.
-- Locks:  none.
-- Index:  job_tag_pkey, backwards; those of a status where few jobs have it.
--
-- The index has the newest jobs of one tenant in order, so those of all tenants are merged: the tenants that have
-- the tag are found one by one, each by a look into the index.
with recursive owner (tenant_id) as (
    select coalesce(
        %(tenant)s::text,
        (
            select job_tag.tenant_id
            from pgbroker.job_tag
            where job_tag.tag = %(tag)s::text
            order by job_tag.tenant_id
            limit 1
        )
    )
    union all
    select (
        select job_tag.tenant_id
        from pgbroker.job_tag
        where job_tag.tag = %(tag)s::text
          and job_tag.tenant_id > owner.tenant_id
        order by job_tag.tenant_id
        limit 1
    )
    from owner
    where %(tenant)s::text is null
      and owner.tenant_id is not null
),
page as materialized (
    select tagged.*
    from owner
    cross join lateral (
        select job.*
        from pgbroker.job_tag
        join pgbroker.job on job.id = job_tag.job_id
        where job_tag.tag = %(tag)s::text
          and job_tag.tenant_id = owner.tenant_id
          and (%(after)s::uuid is null or job_tag.job_id < %(after)s::uuid)
          and (%(queue_id)s::smallint is null or job.queue_id = %(queue_id)s::smallint)
          and (%(type_id)s::int is null or job.job_type_id = %(type_id)s::int)
          and (%(status)s::smallint is null or job.status = %(status)s::smallint)
        order by job_tag.job_id desc
        limit %(limit)s
    ) as tagged
    order by tagged.id desc
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
