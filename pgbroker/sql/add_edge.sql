-- Make a job that exists wait for more: ready, scheduled -> waiting.
--
--   job_id      uuid   the job
--   depends_on  jsonb  what for: an array of references, as an entry of enqueue_many_1 has them
--   on_failure  text   what becomes of it when one of them ends badly: cancel, block, ignore
--
-- Scope:  tenant
-- Rows:   one: how many edges are new.
-- Locks:  the graph of the tenant, until the caller commits: no claim, heartbeat or settle takes that; the job's row.
select pgbroker.add_dependencies_1(%(job_id)s, %(depends_on)s::jsonb, %(on_failure)s) as added
