-- Tell which jobs nobody has locked at this moment.
--
--   job_ids  uuid[]  the jobs
--
-- Scope:  all
-- Plan:   hot
-- Rows:   the id of each job that is there and free.
-- Locks:  job rows, skip locked, for the length of the statement.
-- Index:  job_pkey.
select job.id
from pgbroker.job
where job.id = any (%(job_ids)s::uuid[])
for no key update skip locked
