-- Set blocked jobs free of what blocks them: blocked -> ready, waiting, scheduled.
--
--   job_ids  uuid[]  the jobs
--
-- Scope:  tenant
-- Rows:   one per job this tenant has: job_id, outcome (unblocked, unchanged), and the status it has now.
-- Locks:  job rows, in id order.
select answer.job_id, answer.outcome, answer.status
from pgbroker.unblock_1(%(job_ids)s::uuid[]) as answer
