-- List the members of a run group: what went wrong first, then what is under way, then what waits, then the rest.
--
--   group_id  uuid    the group
--   limit     bigint  most members
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   id, name, job_type, queue, status, attempt_count, max_attempts, created_at, finished_at, and the code of what
--         went wrong last; in that order, and by id.
-- Locks:  none.
-- Index:  job_group, execution_job.
--
-- The ids as bytes, in the same order: to find the first few, the primary key would be read from its beginning.
with page as materialized (
    select job.*, each.place
    from unnest('{12, 11, 13, 5, 3, 2, 0, 1, 4, 10}'::smallint[]) with ordinality as each (status, place)
    cross join lateral (
        select job.*
        from pgbroker.job
        where job.run_group_id = %(group_id)s
          and job.status = each.status
        order by uuid_send(job.id)
        limit %(limit)s
    ) as job
    order by each.place, job.id
    limit %(limit)s
)
select
    page.id,
    page.name,
    job_type.name as job_type,
    queue.name as queue,
    page.status,
    page.attempt_count,
    page.max_attempts,
    page.created_at,
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
    ) as error_code
from page
join pgbroker.queue on queue.id = page.queue_id
join pgbroker.job_type on job_type.id = page.job_type_id
left join pgbroker.job_state on job_state.job_id = page.id
order by page.place, page.id
