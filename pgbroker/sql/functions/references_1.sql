-- What entries say of run groups and prerequisites: names become ids, and what cannot be is refused.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.
--
-- Sequential scans are off: whoever calls has his own settings, and a plan that was made when the tables were small stays.

-- An edge to be: the entry that waits, and what for: an id, or an entry of the same call (then on_ordinal), or a name
-- that need not exist yet (then within). refusal and detail say why it cannot be made.
create type pgbroker.edge_1 as (
    ordinal int,
    prerequisite_id uuid,
    on_ordinal int,
    kind smallint,
    on_failure smallint,
    level int,
    group_name text,
    job_name text,
    within interval,
    refusal text,
    detail text
);

-- A group and a name in it as one text, which is no other pair's: before ~1 each ~ has a 0. Each parameter once, so
-- that it costs no call.
create function pgbroker.name_in_group_1(group_name text, name text) returns text
language sql immutable as $function$
    select replace(group_name, '~', '~0') || '~1' || name
$function$;

-- Find a run group by its name. From and to, and in order: then no index will do but the one of names, whatever the
-- statistics.
create function pgbroker.group_named_1(tenant text, wanted text) returns table (id uuid, level int)
language plpgsql stable
    set enable_seqscan = off
as $function$
begin
    return query
        select run_group.id, run_group.level
        from pgbroker.run_group
        where run_group.tenant_id >= tenant
          and run_group.tenant_id <= tenant
          and run_group.name >= wanted
          and run_group.name <= wanted
        order by run_group.tenant_id, run_group.name
        limit 1;
end
$function$;

-- Find what a name means: the run group, and the job of that name in it where one is asked for. No row where there is no
-- such group; no job where it has none. From and to here too.
create function pgbroker.named_1(tenant text, group_name text, job_name text) returns table (group_id uuid, job_id uuid)
language sql stable rows 1 as $function$
    select named.id, member.id
    from pgbroker.group_named_1(tenant, group_name) as named
    left join lateral (
        select job.id
        from pgbroker.job
        where job.run_group_id >= named.id
          and job.run_group_id <= named.id
          and job.name >= job_name
          and job.name <= job_name
        order by job.run_group_id, job.name
        limit 1
    ) as member on job_name is not null
$function$;

-- Find members of groups by their names, group by group: the ids by name_in_group_1. However little the planner knows, no
-- group is read more than once.
create function pgbroker.members_1(group_names text[], names text[]) returns jsonb
language plpgsql stable
    set enable_seqscan = off
as $function$
begin
    return (
        select coalesce(jsonb_object_agg(pgbroker.name_in_group_1(asked.group_name, member.name), member.id), '{}')
        from (
            select pair.group_name, array_agg(distinct pair.name) as names
            from unnest(group_names, names) as pair (group_name, name)
            where pair.group_name is not null and pair.name is not null
            group by pair.group_name
        ) as asked
        cross join lateral pgbroker.group_named_1(
            coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'), asked.group_name
        ) as named
        cross join lateral (
            select job.id, job.name
            from pgbroker.job
            where job.run_group_id = named.id
              and job.name = any (asked.names)
            offset 0
        ) as member
    );
end
$function$;

-- Read the references of entries, whose groups are known, into edges. An id or a name of another tenant is not found,
-- in the same words as one that does not exist.
create function pgbroker.references_1(entries pgbroker.enqueue_entry_1[]) returns pgbroker.edge_1[]
language plpgsql stable
    set enable_seqscan = off
as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    -- Look-ups in an object: a join of two arrays is quadratic. Of entries that share an id, or a name, the first that
    -- is not refused; a refused one is there too, since what waits for it is to hear so.
    by_id jsonb;
    by_name jsonb;
    members jsonb;
begin
    -- Refused ones too: what depends on them is refused with them. But a name that is taken means who has it.
    select
        coalesce(jsonb_object_agg(entry.id, entry.ordinal order by entry.outcome is null, entry.ordinal desc), '{}'),
        coalesce(
            jsonb_object_agg(
                pgbroker.name_in_group_1(entry.group_name, entry.name), entry.ordinal
                order by entry.outcome is null, entry.ordinal desc
            ) filter (where entry.group_name is not null and entry.name is not null and entry.outcome is distinct from 'duplicate_job_name'),
            '{}'
        )
    into by_id, by_name
    from unnest(entries) as entry;
    select pgbroker.members_1(array_agg(said.group_name), array_agg(said.name))
    into members
    from (
        select
            case when jsonb_typeof(reference) = 'string' or reference ? 'name' then entry.group_name else reference ->> 'group' end as group_name,
            case
                when jsonb_typeof(reference) = 'string' then reference #>> '{}'
                when reference ? 'name' then reference ->> 'name'
                else reference ->> 'job'
            end as name
        from unnest(entries) as entry
        cross join lateral jsonb_array_elements(entry.depends_on) as given (reference)
        where entry.outcome is null
          and entry.depends_on is not null
    ) as said;

    return array(
        select row(
            found.ordinal,
            coalesce(found.job_id, found.group_id),
            found.on_ordinal,
            case when found.group_id is null then 0 else 1 end,
            found.on_failure,
            found.level,
            found.deferred_group,
            found.deferred_job,
            found.within,
            case
                when found.refusal is not null then found.refusal
                when found.width > 10000 then 'too_many_dependencies'
                when found.on_ordinal = found.ordinal or found.entry_id in (found.job_id, found.group_id) then 'self_dependency'
                when found.group_id = found.own_group then 'cyclic_dependency'
                when found.copy > 1 then 'duplicate_dependency'
                when found.level > 10000 then 'dependency_too_deep'
            end,
            case
                when found.refusal is not null then found.detail
                when found.width > 10000 then format('depends_on has %s elements. Give at most 10000.', found.width)
                when found.on_ordinal = found.ordinal or found.job_id = found.entry_id then 'the job depends on itself'
                when found.group_id = found.entry_id then 'the run group depends on itself'
                when found.group_id = found.own_group then 'a member of a group waits for its own group'
                when found.copy > 1 then format('depends_on names %s twice', found.said)
                when found.level > 10000 then 'the chain is longer than 10000 jobs'
            end
        )::pgbroker.edge_1
        from (
            select
                target.*,
                count(*) over (partition by target.ordinal) as width,
                -- The same for all edges of a job: whoever comes next reads one of them.
                max(target.own_level) over (partition by target.ordinal) as level,
                row_number() over (
                    partition by
                        target.ordinal,
                        coalesce(
                            target.on_ordinal::text,
                            target.job_id::text,
                            target.group_id::text,
                            pgbroker.name_in_group_1(target.deferred_group, coalesce('/' || target.deferred_job, '')),
                            target.said
                        )
                    order by target.place
                ) as copy
            from (
                select
                    entry.ordinal,
                    entry.id as entry_id,
                    entry.run_group_id as own_group,
                    each.place,
                    left(each.reference::text, 200) as said,
                    case
                        when each.reference ->> 'on_failure' is null then entry.on_failure
                        else pgbroker.on_failure_1(each.reference ->> 'on_failure')
                    end as on_failure,
                    inside.ordinal as on_ordinal,
                    case when inside.ordinal is null then coalesce(outside.id, member.id) end as job_id,
                    case when inside.ordinal is null and outside.id is null and member.id is null then whole_group.id end as group_id,
                    greatest(entry.level, 1 + case
                        when inside.ordinal is not null then 0
                        when coalesce(outside.id, member.id) is not null
                            then coalesce(pgbroker.level_of_1(existing.id), 0)
                        else coalesce(whole_group.level, 0)
                    end) as own_level,
                    case when missing.so and each.parts ? 'within_seconds' then each.reference ->> 'group' end as deferred_group,
                    case when missing.so and each.parts ? 'within_seconds' then each.reference ->> 'job' end as deferred_job,
                    case
                        when missing.so and each.parts ? 'within_seconds'
                            then (each.reference ->> 'within_seconds')::double precision * interval '1 second'
                    end as within,
                    case
                        when each.bare_name is not null and whole_group.id is not null and (member.id is not null or inside.ordinal is not null)
                            then 'ambiguous_dependency'
                        when missing.so and not each.parts ? 'within_seconds' then 'dependency_not_found'
                    end as refusal,
                    case
                        when each.bare_name is not null and whole_group.id is not null and (member.id is not null or inside.ordinal is not null) then format(
                            '%s is a job of the group and a run group. Say {"group": ...} or {"group": ..., "job": ...}.', to_jsonb(each.bare_name)
                        )
                        when missing.so and not each.parts ? 'within_seconds'
                            then format('there is no %s', case
                                when each.job_id is not null then 'job ' || each.job_id
                                when each.parts ? 'job' and each.parts ? 'group' then format(
                                    'job %s in a run group %s', each.reference -> 'job', each.reference -> 'group'
                                )
                                when each.parts ? 'job' then format('job with the id %s', each.reference -> 'job')
                                when each.bare_name is not null and entry.group_name is not null
                                    then format('job %s in the run group, and no run group of that name', to_jsonb(each.bare_name))
                                else format('run group %s', coalesce(each.reference -> 'group', to_jsonb(each.bare_name)))
                            end)
                    end as detail
                from unnest(entries) as entry
                cross join lateral (
                    select
                        reference,
                        place,
                        shaped.job_id,
                        -- Of a name alone the operator ? would say that it has itself for a key.
                        case when jsonb_typeof(reference) = 'object' then reference else '{}' end as parts,
                        case
                            when jsonb_typeof(reference) <> 'string' then reference ->> 'name'
                            when shaped.job_id is null then reference #>> '{}'
                        end as bare_name
                    from jsonb_array_elements(entry.depends_on) with ordinality as given (reference, place)
                    cross join lateral (
                        select case
                            when said ~ '^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$' then said::uuid
                        end as job_id
                        from (
                            select case
                                when jsonb_typeof(reference) = 'string' then reference #>> '{}'
                                when not reference ? 'group' then reference ->> 'job'
                            end as said
                        ) as words
                    ) as shaped
                ) as each
                cross join lateral (
                    select coalesce(
                        (by_id ->> each.job_id::text)::int,
                        case
                            when each.bare_name is not null
                                then (by_name ->> pgbroker.name_in_group_1(entry.group_name, each.bare_name))::int
                            when each.parts ? 'job' and each.parts ? 'group'
                                then (by_name ->> pgbroker.name_in_group_1(each.reference ->> 'group', each.reference ->> 'job'))::int
                        end
                    ) as ordinal
                ) as inside
                left join lateral (
                    select job.id
                    from pgbroker.job
                    where inside.ordinal is null and job.id = any (array[each.job_id]) and (job.tenant_id = tenant) is true
                    offset 0
                ) as outside on each.job_id is not null
                left join lateral pgbroker.group_named_1(
                    tenant, case when each.bare_name is not null then each.bare_name else each.reference ->> 'group' end
                ) as named_group on each.job_id is null
                left join lateral (
                    select named_group.id, named_group.level
                ) as whole_group on not each.parts ? 'job'
                cross join lateral (
                    select case
                        when inside.ordinal is null and each.job_id is null then (
                            members ->> case
                                when each.bare_name is not null then pgbroker.name_in_group_1(entry.group_name, each.bare_name)
                                else pgbroker.name_in_group_1(each.reference ->> 'group', each.reference ->> 'job')
                            end
                        )::uuid
                    end as id
                ) as member
                -- A column: under a policy "coalesce" is no way into an index, since it might tell of rows it hides.
                cross join lateral (select coalesce(outside.id, member.id) as id offset 0) as existing
                cross join lateral (
                    select coalesce(inside.ordinal::text, outside.id::text, whole_group.id::text, member.id::text) is null as so
                ) as missing
                where entry.outcome is null
                  and entry.depends_on is not null
            ) as target
        ) as found
        order by found.ordinal, found.place
    );
end
$function$;
