-- Tell what a run group is called, and how it stands.
--
--   group_id  uuid  the group
--
-- Scope:  tenant
-- Rows:   one when this tenant has the group: its name and its state.
-- Locks:  none.
-- Index:  run_group_pkey.
select run_group.name, run_group.state
from pgbroker.run_group
where run_group.id = %(group_id)s
