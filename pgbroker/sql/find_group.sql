-- Find a run group by its name.
--
--   name  text  the name
--
-- Scope:  tenant
-- Rows:   one when this tenant has a group of that name: its id.
-- Locks:  none.
-- Index:  run_group_name_unique.
select run_group.id as group_id
from pgbroker.run_group
where run_group.tenant_id = coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default')
  and run_group.name = %(name)s
