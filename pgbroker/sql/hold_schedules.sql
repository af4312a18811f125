-- Hold those of some schedules that nobody else holds.
--
--   tenants  text[]  the tenants ...
--   names    text[]  ... and the names
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one per schedule that is held now: its tenant and its name.
-- Locks:  the schedules' rows in id order, skip locked.
-- Index:  schedule_name_unique, schedule_pkey.
select schedule.tenant_id, schedule.name
from pgbroker.schedule
where schedule.id = any (
    array(
        select known.id
        from unnest(%(tenants)s::text[], %(names)s::text[]) as said (tenant, name)
        join pgbroker.schedule as known on known.tenant_id = said.tenant
                                       and known.name = said.name
    )
)
order by schedule.id
for no key update of schedule skip locked
