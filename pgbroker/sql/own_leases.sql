-- List the leases that a worker holds by the database's account.
--
--   worker_id  uuid  the worker
--
-- Scope:  all
-- Plan:   hot
-- Rows:   job_id, lease_token.
-- Locks:  none.
-- Index:  job_lease.
--
-- Asked once after a lost connection: a claim may have committed although its answer never arrived.
select id as job_id, lease_token
from pgbroker.job
where status = 3 /* running */
  and lease_expires_at > statement_timestamp()
  and worker_id = %(worker_id)s
