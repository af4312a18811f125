-- Record what the code declares about its job types.
--
--   names     text[]   the types
--   versions  int[]    ... their versions
--   aliases   jsonb    ... an array of former names for each
--   defaults  jsonb    ... an object of declared defaults for each
--
-- Scope:  none
-- Rows:   one per type: id, name, and whether it says something else and somebody holds its row: it is left so.
-- Locks:  the rows, skip locked: a process that starts waits for nobody. But for a name that somebody is just making.
--         A type that exists costs no number of its key; a row that says the same already is left as it is, so that
--         many workers can start at once.
with declared as materialized (
    select
        entry.name,
        entry.version,
        array(select jsonb_array_elements_text(%(aliases)s::jsonb -> (entry.place - 1)::int)) as aliases,
        %(defaults)s::jsonb -> (entry.place - 1)::int as defaults
    from unnest(%(names)s::text[], %(versions)s::int[]) with ordinality as entry (name, version, place)
),
differing as materialized (
    select job_type.id
    from pgbroker.job_type
    join declared on declared.name = job_type.name
    where declared.version >= job_type.version
      and (
          job_type.version <> declared.version
          or job_type.aliases <> declared.aliases
          or job_type.defaults <> declared.defaults
          or job_type.last_seen_at < statement_timestamp() - interval '1 hour'
      )
),
taken as materialized (
    select job_type.id
    from pgbroker.job_type
    where job_type.id in (select differing.id from differing)
    order by job_type.name
    for no key update skip locked
),
changed as (
    update pgbroker.job_type
    -- The newest version any code declared: an older release that starts again does not take it back.
    set version = greatest(job_type.version, declared.version),
        aliases = declared.aliases,
        defaults = declared.defaults,
        last_seen_at = statement_timestamp()
    from declared
    where job_type.name = declared.name
      and job_type.id in (select taken.id from taken)
      -- Whoever held it a moment ago may have written a newer one.
      and declared.version >= job_type.version
),
new as (
    insert into pgbroker.job_type (name, version, aliases, defaults)
    select name, version, aliases, defaults
    from declared
    where not exists (select from pgbroker.job_type where job_type.name = declared.name)
    order by name
    on conflict (name) do nothing
    returning id, name
)
select id, name, false as is_held from new
union all
select
    job_type.id,
    job_type.name,
    job_type.id in (select differing.id from differing) and job_type.id not in (select taken.id from taken)
from pgbroker.job_type
join declared on declared.name = job_type.name
