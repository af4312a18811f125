-- Enqueue a batch of jobs in the caller's transaction, through the one rule book.
--
--   jobs  jsonb  an array of jobs, as pgbroker.enqueue_many_1 takes them
--
-- Scope:  tenant
-- Rows:   one per job, in order: ordinal, job_id, outcome (created, existing or an error code), detail.
-- Locks:  the idempotency keys the batch takes.
select ordinal, job_id, outcome, detail
from pgbroker.enqueue_many_1(%(jobs)s::jsonb)
order by ordinal
