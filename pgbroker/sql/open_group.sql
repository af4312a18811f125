-- Open a run group of the caller's tenant.
--
--   name     text   its name, which no other group of the tenant has
--   options  jsonb  as pgbroker.open_group_1 takes them
--
-- Scope:  tenant
-- Rows:   one: the id of the new group.
-- Locks:  the name, for which it waits for a transaction that is just opening another group under it.
-- Commit: edges to what lives are looked at once more.
select pgbroker.open_group_1(%(name)s, %(options)s::jsonb) as group_id
