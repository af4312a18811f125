-- Record what the code declares about its job types.
--
--   names     text[]   the types
--   versions  int[]    ... their versions
--   aliases   jsonb    ... an array of former names for each
--   defaults  jsonb    ... an object of declared defaults for each
--
-- Scope:  none
-- Rows:   one per type: id, name.
-- Locks:  the rows, in name order. A type that exists costs no number of its key; a row that says the same
--         already is left as it is, so that many workers can start at once.
with declared as materialized (
    select
        entry.name,
        entry.version,
        array(select jsonb_array_elements_text(%(aliases)s::jsonb -> (entry.place - 1)::int)) as aliases,
        %(defaults)s::jsonb -> (entry.place - 1)::int as defaults
    from unnest(%(names)s::text[], %(versions)s::int[]) with ordinality as entry (name, version, place)
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
      and declared.version >= job_type.version
      and (
          job_type.version <> declared.version
          or job_type.aliases <> declared.aliases
          or job_type.defaults <> declared.defaults
          or job_type.last_seen_at < statement_timestamp() - interval '1 hour'
      )
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
select id, name from new
union all
select job_type.id, job_type.name
from pgbroker.job_type
join declared on declared.name = job_type.name
