-- Say that code runs which declares these schedules for a project, and ask whether its word counts.
--
--   project  text      the project
--   digest   text      of all that this code declares
--   quiet    interval  for how long other code that was newer must not have been seen
--   insist   boolean   take the word, whoever has it
--
-- Scope:  none
-- Rows:   one: true where it had not the word before; none while newer code has it.
-- Locks:  the project's row, to the end of the transaction: two that write schedules of one project do so in turn.
-- Index:  schedule_declarer_pkey.
--
-- Code that nobody has seen is the newest. What was seen before and is not the newest is the code before a deploy, or
-- one that has been gone back to: the latter if the newer one is no longer seen.
with known as materialized (
    select project, digest
    from pgbroker.schedule_declarer
    where project = %(project)s
    for no key update
),
told as (
    insert into pgbroker.schedule_declarer as declarer (project, digest)
    -- After the look: a row that this statement has changed could not be locked any more.
    select %(project)s, %(digest)s
    from (select count(*) from known) as looked
    on conflict on constraint schedule_declarer_pkey do update
    set digest = excluded.digest,
        former = case
            when declarer.digest = excluded.digest then declarer.former
            else (array_remove(declarer.former, excluded.digest) || declarer.digest)[greatest(1, cardinality(declarer.former) - 48):]
        end,
        since = case when declarer.digest = excluded.digest then declarer.since else statement_timestamp() end,
        seen_at = statement_timestamp()
    where declarer.digest = excluded.digest
       or (excluded.digest = any (declarer.former)) is not true
       or declarer.seen_at < statement_timestamp() - %(quiet)s::interval
       or %(insist)s
    returning declarer.project, declarer.digest
)
select (known.digest = told.digest) is not true as is_new
from told
left join known on known.project = told.project
