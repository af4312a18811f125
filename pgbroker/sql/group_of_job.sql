-- Find the run group of a job that an attempt works on, and say whether that still holds its lease.
--
--   job_id       uuid    the job
--   lease_token  bigint  the attempt's
--
-- Scope:  tenant
-- Rows:   one when the job is there: whether the lease is held, the group's id and its name, null where it is in none.
-- Locks:  none: a settle or a heartbeat would wait for whoever asks, as long as his transaction is open.
-- Index:  job_pkey, run_group_pkey.
select
    job.lease_token = %(lease_token)s and job.status = 3 /* running */ as is_held,
    run_group.id as group_id,
    run_group.name
from pgbroker.job
left join pgbroker.run_group on run_group.id = job.run_group_id
where job.id = %(job_id)s
