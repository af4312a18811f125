-- Seal a run group: nothing is added to it any more, and it ends when its last member has.
--
--   group_id  uuid  the group
--
-- Scope:  tenant
-- Rows:   one: its state then, null where this tenant has no such group.
-- Locks:  the group's row, for which it waits for transactions that are adding to it.
-- Commit: edges to what lives are looked at once more.
select pgbroker.seal_group_1(%(group_id)s) as state
