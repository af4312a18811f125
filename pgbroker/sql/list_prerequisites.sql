-- List what a job waits for, or waited for, with the results of what has completed, a page at a time.
--
--   job_id  uuid    the job
--   after   uuid    the page before ended with this prerequisite
--   limit   bigint  page size
--
-- Scope:  tenant
-- Rows:   one per edge, by prerequisite: its id, whether it is a group, the name of the job in its group, the name of
--         the group, the status now (of a row that is gone: how it ended), the result or the stub of a body and its name.
-- Locks:  none.
-- Index:  job_dependency_pkey, job_pkey, run_group_pkey, execution_job.
select
    edge.prerequisite_id,
    edge.kind = 1 as is_group,
    job.name,
    run_group.name as group_name,
    coalesce(case when edge.kind = 1 then run_group.state else job.status end, edge.outcome) as status,
    answer.result,
    answer.result_body
from (
    select *
    from pgbroker.job_dependency
    where job_dependency.dependent_id = %(job_id)s
      and job_dependency.prerequisite_id > %(after)s
    order by job_dependency.prerequisite_id
    limit %(limit)s
) as edge
left join pgbroker.job on edge.kind = 0 and job.id = edge.prerequisite_id
left join pgbroker.run_group on run_group.id = case when edge.kind = 1 then edge.prerequisite_id else job.run_group_id end
left join lateral (
    select execution.result, execution.result_body
    from pgbroker.execution
    where execution.job_id = job.id
      and job.status = 10 /* completed */
      and execution.state = 1 /* completed */
    order by execution.attempt_no desc
    limit 1
) as answer on true
order by edge.prerequisite_id
