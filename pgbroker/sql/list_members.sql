-- List the members of a run group with the results of those that have completed, a page at a time.
--
--   group_id  uuid    the group
--   after     uuid    the page before ended with this job
--   limit     bigint  page size
--
-- Scope:  tenant
-- Rows:   one per member, by id: its id, false (it is no group), its name in the group, the name of the group, its
--         status, the result or the stub of a body and its name.
-- Locks:  none.
-- Index:  job_group, execution_job.
select
    job.id as job_id,
    false as is_group,
    job.name,
    run_group.name as group_name,
    job.status,
    answer.result,
    answer.result_body
from (
    select *
    from pgbroker.job
    where job.run_group_id = %(group_id)s
      and job.id > %(after)s
    order by job.id
    limit %(limit)s
) as job
join pgbroker.run_group on run_group.id = job.run_group_id
left join lateral (
    select execution.result, execution.result_body
    from pgbroker.execution
    where execution.job_id = job.id
      and job.status = 10 /* completed */
      and execution.state = 1 /* completed */
    order by execution.attempt_no desc
    limit 1
) as answer on true
order by job.id
