-- Find which bodies some row names.
--
--   job_ids  uuid[]  the job of each body
--   names    text[]  ... and its name in the storage
--
-- Scope:  all
-- Rows:   name, of each that the payload or an ended attempt of its job names.
-- Locks:  none.
-- Index:  job_payload_pkey, execution_job.
select body.name
from unnest(%(job_ids)s::uuid[], %(names)s::text[]) as body (job_id, name)
where exists (
        select
        from pgbroker.job_payload as payload
        where payload.job_id = body.job_id
          and payload.args_body = body.name
    )
   or exists (
        select
        from pgbroker.execution
        where execution.job_id = body.job_id
          and execution.result_body = body.name
    )
