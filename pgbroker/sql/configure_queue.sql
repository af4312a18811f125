-- Change how a queue ages and how long its leases last.
--
--   name            text              the queue
--   set_ageing      boolean           whether to change ageing_seconds
--   ageing_seconds  double precision  one step of priority in seconds of waiting; null: the setting's default
--   set_lease       boolean           whether to change lease_seconds
--   lease_seconds   double precision  how long a claim holds a job; null: the setting's default
--
-- Scope:  none
-- Rows:   the queue: id, name, ageing_seconds, lease_seconds; none when there is none.
-- Locks:  the queue's row.
update pgbroker.queue
set ageing_seconds = case when %(set_ageing)s::boolean then %(ageing_seconds)s::double precision else ageing_seconds end,
    lease_seconds = case when %(set_lease)s::boolean then %(lease_seconds)s::double precision else lease_seconds end
where name = %(name)s::text
returning id, name, ageing_seconds, lease_seconds
