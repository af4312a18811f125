-- Make sure that queues exist.
--
--   names  text[]  the queues
--
-- Scope:  none
-- Rows:   one per name: id, name, ageing_seconds, lease_seconds.
-- Locks:  the new rows. A queue that exists costs no number of its small key.
with named as (
    select distinct name from unnest(%(names)s::text[]) as named (name)
),
new as (
    insert into pgbroker.queue (name)
    select name
    from named
    where not exists (select from pgbroker.queue where queue.name = named.name)
    order by name
    on conflict (name) do nothing
    returning id, name, ageing_seconds, lease_seconds
),
new_priority as (
    insert into pgbroker.queue_priority (queue_id, priority)
    select id, 0 from new
)
select id, name, ageing_seconds, lease_seconds from new
union all
select queue.id, queue.name, queue.ageing_seconds, queue.lease_seconds
from pgbroker.queue
join named on named.name = queue.name
