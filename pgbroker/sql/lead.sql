-- Ask to lead a duty: take its lease where nobody holds one, renew it where it is the asker's own.
--
--   duty    text      what is led
--   holder  uuid      who asks, by an id that is never used again
--   name    text      ... and what people call it
--   lease   interval  how long the lease lasts from now
--
-- Scope:  none
-- Rows:   one: whether the asker leads, the epoch, and the seconds until the lease ends, whoever holds it; none when
--         another asker took it in this very moment.
-- Locks:  the duty's row, where the lease is the asker's or seems to be free. Whoever waits for somebody else's
--         lease to end only reads: an upsert would lock the row before it finds that it may not write it.
-- Index:  leader_pkey.
--
-- Times are those of the statement's start: a wait for the row's lock makes a lease end earlier, never later. The
-- epoch rises with each reign, also where the same holder comes back after its lease had run out.
with known as materialized (
    select holder, epoch, expires_at
    from pgbroker.leader
    where duty = %(duty)s
),
taken as (
    insert into pgbroker.leader as leader (duty, holder, name, epoch, since, expires_at)
    select
        %(duty)s, %(holder)s, %(name)s, 1, statement_timestamp(),
        statement_timestamp() + %(lease)s::interval
    where not exists (
        select
        from known
        where known.holder <> %(holder)s
          and known.expires_at > statement_timestamp()
    )
    on conflict (duty) do update
    set holder = excluded.holder,
        name = excluded.name,
        epoch = leader.epoch + (leader.holder <> excluded.holder or leader.expires_at <= statement_timestamp())::int,
        since = case
            when leader.holder = excluded.holder and leader.expires_at > statement_timestamp() then leader.since
            else statement_timestamp()
        end,
        expires_at = excluded.expires_at
    where leader.holder = excluded.holder
       or leader.expires_at <= statement_timestamp()
    returning epoch, expires_at
)
select
    true as leads,
    epoch,
    extract(epoch from expires_at - statement_timestamp())::double precision as seconds
from taken
union all
select
    false,
    epoch,
    extract(epoch from expires_at - statement_timestamp())::double precision
from known
where not exists (select from taken)
