-- Find the run group of a job.
--
--   job_id  uuid  the job
--
-- Scope:  tenant
-- Rows:   one when the job is in a group: the group's id and its name.
-- Locks:  none.
-- Index:  job_pkey, run_group_pkey.
select run_group.id as group_id, run_group.name
from pgbroker.job
join pgbroker.run_group on run_group.id = job.run_group_id
where job.id = %(job_id)s
