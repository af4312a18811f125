-- Say what would keep a template from being created in the current tenant: it is tried, and undone.
--
--   template  jsonb  the template
--
-- Scope:  tenant
-- Rows:   one: error code and reason, both null when nothing would.
-- Locks:  what an enqueue locks, for a moment.
select answer.error_code, answer.error
from pgbroker.template_misfit_1(%(template)s::jsonb) as answer
