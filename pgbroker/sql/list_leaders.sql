-- Tell who leads which duty, or who did last.
--
-- Scope:  none
-- Rows:   one per duty, by name: duty, holder, its name, epoch, since when, and the seconds until its lease ends
--         (negative: it ended so long ago and nobody leads).
-- Locks:  none.
select
    duty,
    holder,
    name,
    epoch,
    since,
    extract(epoch from expires_at - statement_timestamp())::double precision as seconds
from pgbroker.leader
order by duty
