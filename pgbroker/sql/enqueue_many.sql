-- Enqueue a batch of jobs in the caller's transaction, through the one rule book.
--
--   jobs  jsonb  an array of jobs, as pgbroker.enqueue_many_1 takes them
--
-- Scope:  tenant
-- Rows:   one per job, in order: ordinal, job_id, outcome (created, replaced, existing or an error code), detail, and
--         in the first row the instant at which what was created was: to read it from each costs more than the rest.
-- Locks:  the idempotency keys the batch takes, in order, then the jobs that it replaces.
-- Commit: edges to what lives are looked at once more.
select ordinal, job_id, outcome, detail, case when ordinal = 1 then statement_timestamp() end as created_at
from pgbroker.enqueue_many_1(%(jobs)s::jsonb)
order by ordinal
