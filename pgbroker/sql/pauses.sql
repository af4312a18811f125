-- List the pauses in force.
--
-- Scope:  none
-- Rows:   queue_id, job_type_id, tenant; what is null does not limit the pause.
-- Locks:  none.
select queue_id, job_type_id, tenant
from pgbroker.pause
where until is null
   or until > statement_timestamp()
