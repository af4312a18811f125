-- What entries say of run groups and prerequisites: names become ids, what cannot be is refused, levels are counted.
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
            case jsonb_typeof(reference) when 'string' then entry.group_name else reference ->> 'group' end as group_name,
            case jsonb_typeof(reference) when 'string' then reference #>> '{}' else reference ->> 'job' end as name
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
                        when each.bare and whole_group.id is not null and (member.id is not null or inside.ordinal is not null)
                            then 'ambiguous_dependency'
                        when missing.so and not each.parts ? 'within_seconds' then 'dependency_not_found'
                    end as refusal,
                    case
                        when each.bare and whole_group.id is not null and (member.id is not null or inside.ordinal is not null) then format(
                            '%s is a job of the group and a run group. Say {"group": ...} or {"group": ..., "job": ...}.', each.reference
                        )
                        when missing.so and not each.parts ? 'within_seconds'
                            then format('there is no %s', case
                                when each.job_id is not null then 'job ' || each.job_id
                                when each.parts ? 'job' and each.parts ? 'group' then format(
                                    'job %s in a run group %s', each.reference -> 'job', each.reference -> 'group'
                                )
                                when each.parts ? 'job' then format('job with the id %s', each.reference -> 'job')
                                when each.bare and entry.group_name is not null
                                    then format('job %s in the run group, and no run group of that name', each.reference)
                                else format('run group %s', coalesce(each.reference -> 'group', each.reference))
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
                        jsonb_typeof(reference) = 'string' and shaped.job_id is null as bare
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
                            when each.bare
                                then (by_name ->> pgbroker.name_in_group_1(entry.group_name, each.reference #>> '{}'))::int
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
                    tenant, case when each.bare then each.reference #>> '{}' else each.reference ->> 'group' end
                ) as named_group on each.job_id is null
                left join lateral (
                    select named_group.id, named_group.level
                ) as whole_group on not each.parts ? 'job'
                cross join lateral (
                    select case
                        when inside.ordinal is null and each.job_id is null then (
                            members ->> case
                                when each.bare then pgbroker.name_in_group_1(entry.group_name, each.reference #>> '{}')
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

-- Put entries into their groups, and read what they depend on. An entry that cannot be is refused, and with it those
-- of the same call that depend on it.
--
-- A key-share lock holds each group open until the caller commits: whoever seals it waits. It keeps nobody from
-- settling its members.
create function pgbroker.enqueue_links_1(inout entries pgbroker.enqueue_entry_1[], out edges pgbroker.edge_1[])
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    known jsonb;
    members jsonb;
begin
    if exists (select from unnest(entries) as entry where entry.group_name is not null and entry.outcome is null) then
        -- A member that waits for something, in a group that others may wait for, may close a cycle with what another
        -- transaction is just adding: these take turns, until they commit.
        if exists (
            select
            from pgbroker.run_group
            where run_group.tenant_id = any (array[tenant])
              and run_group.name = any (array(
                  select distinct entry.group_name
                  from unnest(entries) as entry
                  where entry.outcome is null and entry.depends_on is not null
              ))
              and run_group.opened_in <> pg_current_xact_id()::text::bigint
        ) then
            perform pgbroker.lock_graph_1(tenant);
        end if;
        select jsonb_object_agg(
            held.name,
            jsonb_build_object(
                'id', held.id,
                'open', held.state = 0 /* open */,
                'level', held.level,
                'waits', exists (select from pgbroker.open_edges_of_1(held.id))
            )
        )
        into known
        from (
            select run_group.id, run_group.name, run_group.state, run_group.level
            from pgbroker.run_group
            where run_group.tenant_id = any (array[tenant])
              and run_group.name = any (array(
                  select distinct entry.group_name from unnest(entries) as entry where entry.outcome is null
              ))
            order by run_group.id
            for key share
        ) as held;
        -- Who has a name that is asked for, by now.
        members := (
            select pgbroker.members_1(array_agg(entry.group_name), array_agg(entry.name))
            from unnest(entries) as entry
            where entry.outcome is null and entry.name is not null
        );
        entries := array(
            select case
                when entry.outcome is not null or entry.group_name is null then entry
                when own.said is null then pgbroker.enqueue_with_outcome_1(
                    entry, 'group_not_found', format('there is no run group %L', entry.group_name)
                )
                when not (own.said ->> 'open')::boolean then pgbroker.enqueue_with_outcome_1(
                    entry, 'group_sealed', format('run group %L is sealed: nothing is added to it any more', entry.group_name)
                )
                when entry.name is not null and (
                    row_number() over (
                        partition by entry.group_name, entry.name, entry.outcome is null order by entry.ordinal
                    ) > 1
                    or exists (
                        select
                        from (select (members ->> pgbroker.name_in_group_1(entry.group_name, entry.name))::uuid as id) as job
                        where job.id <> entry.id
                          -- Whoever has the entry's key is its answer.
                          and not exists (
                              select
                              from pgbroker.idempotency as held
                              where held.tenant_id = tenant
                                and held.job_type_id = entry.job_type_id
                                and held.key = entry.idempotency_key
                                and held.job_id = job.id
                          )
                    )
                ) then pgbroker.enqueue_with_outcome_1(
                    entry, 'duplicate_job_name', format('run group %L has a job %L', entry.group_name, entry.name)
                )
                else pgbroker.enqueue_in_group_1(
                    entry, (own.said ->> 'id')::uuid, (own.said ->> 'waits')::boolean, (own.said ->> 'level')::int
                )
            end
            from unnest(entries) as entry
            cross join lateral (select known -> entry.group_name as said) as own
            order by entry.ordinal
        );
    end if;

    edges := pgbroker.references_1(entries);
    if exists (select from unnest(edges) as edge where edge.refusal is not null or edge.on_ordinal is not null) then
        -- An id that another job has: what waits for the entry must not come to wait for that one.
        entries := array(
            select case
                when awaited.ordinal is not null and entry.outcome is null and pgbroker.is_taken_1(entry)
                    then pgbroker.enqueue_with_outcome_1(
                        entry, 'invalid_option', format('id %s is taken by a job with another body or key', entry.id)
                    )
                else entry
            end
            from unnest(entries) as entry
            left join (select distinct edge.on_ordinal as ordinal from unnest(edges) as edge) as awaited
                on awaited.ordinal = entry.ordinal
            order by entry.ordinal
        );
        select * into entries, edges from pgbroker.enqueue_order_1(entries, edges);
    end if;
    -- The grants of waiting follow in one go: a composite is copied whole with each change.
    entries := array(
        select case when waiting.ordinal is not null then pgbroker.enqueue_waiting_1(entry) else entry end
        from unnest(entries) as entry
        left join (select distinct edge.ordinal from unnest(edges) as edge) as waiting on waiting.ordinal = entry.ordinal
        order by entry.ordinal
    );
end
$function$;

-- Tell whether the id of an entry is that of a job of its tenant which is another one.
create function pgbroker.is_taken_1(entry pgbroker.enqueue_entry_1) returns boolean
language plpgsql stable as $function$
begin
    return exists (
        select
        from pgbroker.job
        join pgbroker.job_payload as payload on payload.job_id = any (array[job.id])
        where job.id = any (array[entry.id])
          and job.tenant_id = coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default')
          and not (
              job.job_type_id = entry.job_type_id
              and payload.args = entry.args
              and payload.idempotency_key is not distinct from entry.idempotency_key
          )
    );
end
$function$;

create function pgbroker.enqueue_in_group_1(entry pgbroker.enqueue_entry_1, run_group_id uuid, waits boolean, level int)
returns pgbroker.enqueue_entry_1
language plpgsql immutable as $function$
begin
    entry.run_group_id := run_group_id;
    entry.waits := waits;
    entry.level := level;
    return entry;
end
$function$;

create function pgbroker.enqueue_waiting_1(entry pgbroker.enqueue_entry_1) returns pgbroker.enqueue_entry_1
language plpgsql immutable as $function$
begin
    entry.waits := entry.outcome is null;
    return entry;
end
$function$;

-- Take turns in what could close a cycle, in one tenant until the commit. No claim, heartbeat or settle comes here.
create function pgbroker.lock_graph_1(tenant text) returns void
language plpgsql volatile as $function$
begin
    perform pg_advisory_xact_lock(hashtextextended('pgbroker.graph ' || tenant, 0));
    perform pgbroker.count_turn_1(tenant);
end
$function$;

-- Above READ COMMITTED this fails (40001) where somebody has had a turn since the transaction's snapshot, which does not
-- show what was added then.
create function pgbroker.count_turn_1(tenant text) returns void
language sql volatile as $function$
    insert into pgbroker.graph_turn as known (tenant_id)
    values (tenant)
    on conflict (tenant_id) do update
    set number = known.number + 1
$function$;

-- Walk the entries of one call in the order of what they depend on: refuse what depends on a refused one, or on itself
-- by way of others, and count levels.
create function pgbroker.enqueue_order_1(inout entries pgbroker.enqueue_entry_1[], inout edges pgbroker.edge_1[])
language plpgsql immutable as $function$
declare
    size constant int := cardinality(entries);
    levels int[] := array_fill(0, array[size]);
    codes text[] := array_fill(null::text, array[size]);
    details text[] := array_fill(null::text, array[size]);
    followers jsonb;
    below int[];
    above int[];
    -- The edges inside of the call by the entry that is waited for: those of entry n are at starts[n] to starts[n + 1] - 1.
    starts int[];
    waiting int[];
    missing int[];
    turn int[];
    at int := 1;
    each int;
    dependent int;
begin
    select
        array_agg(edge.refusal order by entry.ordinal),
        array_agg(edge.detail order by entry.ordinal),
        array_agg(greatest(entry.level, edge.level, 0) order by entry.ordinal)
    into codes, details, levels
    from unnest(entries) as entry
    left join (
        select
            each_edge.ordinal,
            (array_agg(each_edge.refusal) filter (where each_edge.refusal is not null))[1] as refusal,
            (array_agg(each_edge.detail) filter (where each_edge.refusal is not null))[1] as detail,
            max(each_edge.level) as level
        from unnest(edges) as each_edge
        group by each_edge.ordinal
    ) as edge on edge.ordinal = entry.ordinal;
    -- What the entry itself was refused for stands.
    select array_agg(coalesce(entry.outcome, codes[entry.ordinal]) order by entry.ordinal)
    into codes
    from unnest(entries) as entry;

    -- Who waits for an entry whose key an earlier one has waits for that one's job. One that replaces it has its own.
    followers := (
        select jsonb_object_agg(same_key.ordinal, same_key.first)
        from (
            select
                entry.ordinal,
                entry.on_conflict,
                first_value(entry.ordinal) over (
                    partition by entry.job_type_id, entry.idempotency_key order by entry.ordinal
                ) as first
            from unnest(entries) as entry
            where entry.outcome is null and entry.idempotency_key is not null
        ) as same_key
        where same_key.first < same_key.ordinal and same_key.on_conflict <> 'replace'
    );
    select array_agg(edge.ordinal), array_agg(edge.on_ordinal)
    into below, above
    from (
        select edge.ordinal, edge.on_ordinal from unnest(edges) as edge where edge.on_ordinal <> edge.ordinal
        union all
        select edge.ordinal, (followers ->> edge.on_ordinal::text)::int from unnest(edges) as edge
    ) as edge
    where edge.on_ordinal is not null;

    select array_agg(edge.ordinal order by edge.on_ordinal) into waiting
    from unnest(below, above) as edge (ordinal, on_ordinal);
    select array_agg(sum order by ordinal), array_agg(needs order by ordinal)
    into starts, missing
    from (
        select
            place.ordinal,
            1 + coalesce(sum(counted.dependents) over (order by place.ordinal rows between unbounded preceding and 1 preceding), 0)::int as sum,
            coalesce(needed.prerequisites, 0)::int as needs
        from generate_series(1, size + 1) as place (ordinal)
        left join (
            select edge.on_ordinal as ordinal, count(*) as dependents
            from unnest(below, above) as edge (ordinal, on_ordinal)
            group by edge.on_ordinal
        ) as counted on counted.ordinal = place.ordinal
        left join (
            select edge.ordinal, count(*) as prerequisites
            from unnest(below, above) as edge (ordinal, on_ordinal)
            group by edge.ordinal
        ) as needed on needed.ordinal = place.ordinal
    ) as laid_out;

    turn := array(select place from generate_series(1, size) as place where missing[place] = 0 order by place);
    while at <= cardinality(turn) loop
        for each in starts[turn[at]] .. starts[turn[at] + 1] - 1 loop
            dependent := waiting[each];
            if codes[turn[at]] is not null and codes[dependent] is null then
                codes[dependent] := 'prerequisite_refused';
                details[dependent] := format('entry %s of this call, which it depends on, was refused', turn[at]);
            end if;
            if levels[dependent] <= levels[turn[at]] then
                levels[dependent] := levels[turn[at]] + 1;
                if levels[dependent] > 10000 and codes[dependent] is null then
                    codes[dependent] := 'dependency_too_deep';
                    details[dependent] := 'the chain is longer than 10000 jobs';
                end if;
            end if;
            missing[dependent] := missing[dependent] - 1;
            if missing[dependent] = 0 then
                turn := turn || dependent;
            end if;
        end loop;
        at := at + 1;
    end loop;

    entries := array(
        select case
            when entry.outcome is not null then entry
            when codes[entry.ordinal] is not null
                then pgbroker.enqueue_with_outcome_1(entry, codes[entry.ordinal], details[entry.ordinal])
            when missing[entry.ordinal] > 0 then pgbroker.enqueue_with_outcome_1(
                entry, 'cyclic_dependency', 'by way of other entries of this call the job depends on itself, or on one that does'
            )
            else entry
        end
        from unnest(entries) as entry
        order by entry.ordinal
    );
    edges := array(
        select row(
            edge.ordinal, edge.prerequisite_id, edge.on_ordinal, edge.kind, edge.on_failure, levels[edge.ordinal],
            edge.group_name, edge.job_name, edge.within, null, null
        )::pgbroker.edge_1
        from unnest(edges) as edge
        where codes[edge.ordinal] is null
          and missing[edge.ordinal] = 0
        order by edge.ordinal
    );
end
$function$;

-- Refuse those entries that depend on one of the same call that was refused for its key; their keys are free again.
create function pgbroker.enqueue_refused_1(entries pgbroker.enqueue_entry_1[], edges pgbroker.edge_1[])
returns pgbroker.enqueue_entry_1[]
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    sunk int[];
begin
    with recursive refused (ordinal) as (
        select entry.ordinal
        from unnest(entries) as entry
        where entry.outcome not in ('created', 'replaced', 'existing')
        union
        select edge.ordinal
        from refused
        join unnest(edges) as edge on edge.on_ordinal = refused.ordinal
    )
    select array_agg(ordinal) into sunk from refused;
    if sunk is null then
        return entries;
    end if;
    if exists (
        select
        from unnest(entries) as entry
        where (entry.ordinal in (select unnest(sunk))) is true and entry.outcome is null and entry.detail is not null
    ) then
        -- The job in whose place it was to come has been cancelled for it: nothing of the call is kept.
        raise exception 'pgbroker: an entry that replaces a job depends on an entry that is refused'
            using errcode = 'PB001', hint = 'prerequisite_refused';
    end if;
    delete from pgbroker.idempotency as held
    using unnest(entries) as entry
    where (entry.ordinal in (select unnest(sunk))) is true
      and entry.outcome is null
      and held.tenant_id = tenant
      and held.job_type_id = entry.job_type_id
      and held.key = entry.idempotency_key
      and held.job_id = entry.id;
    return array(
        select case
            when entry.outcome is null and (entry.ordinal in (select unnest(sunk))) is true then pgbroker.enqueue_with_outcome_1(
                entry, 'prerequisite_refused', 'an entry of this call, which it depends on, was refused'
            )
            else entry
        end
        from unnest(entries) as entry
        order by entry.ordinal
    );
end
$function$;

-- Store the edges of the entries that were made; ids are those that the entries of the call have in the end.
create function pgbroker.enqueue_edges_1(
    entries pgbroker.enqueue_entry_1[], edges pgbroker.edge_1[], ids uuid[], made uuid[]
) returns void
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    over uuid[];
    freed uuid[];
    joined record;
begin
    insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id, on_failure, level)
    select
        ids[edge.ordinal],
        coalesce(ids[edge.on_ordinal], edge.prerequisite_id),
        edge.kind,
        tenant,
        edge.on_failure,
        edge.level
    from unnest(edges) as edge
    where edge.within is null
      and (ids[edge.ordinal] in (select unnest(made))) is true
    on conflict do nothing;
    insert into pgbroker.deferred_reference (dependent_id, tenant_id, group_name, job_name, on_failure, deadline_at)
    select ids[edge.ordinal], tenant, edge.group_name, edge.job_name, edge.on_failure, statement_timestamp() + edge.within
    from unnest(edges) as edge
    where edge.within is not null
      and (ids[edge.ordinal] in (select unnest(made))) is true
    on conflict do nothing;
    -- What a group waits for, each of its members waits for.
    insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id, on_failure, level)
    select
        ids[entry.ordinal],
        edge.prerequisite_id,
        edge.kind - 2,
        tenant,
        edge.on_failure,
        greatest(entry.level, pgbroker.level_of_1(ids[entry.ordinal]))
    from unnest(entries) as entry
    cross join lateral pgbroker.open_edges_of_1(entry.run_group_id) as edge
    where entry.outcome is null
      and entry.run_group_id is not null
      and (ids[entry.ordinal] in (select unnest(made))) is true
    on conflict do nothing;

    for joined in
        select entry.run_group_id as group_id, array_agg(distinct coalesce(ids[edge.on_ordinal], edge.prerequisite_id)) as prerequisites
        from unnest(entries) as entry
        join unnest(edges) as edge on edge.ordinal = entry.ordinal
        where entry.outcome is null
          and entry.run_group_id is not null
          and edge.within is null
        group by entry.run_group_id
    loop
        perform pgbroker.refuse_cycle_1(array[joined.group_id], joined.prerequisites);
    end loop;
    -- What is over already: these edges say so at once.
    over := array(
        select prerequisite.id
        from pgbroker.prerequisites_1(
            array(select distinct coalesce(ids[edge.on_ordinal], edge.prerequisite_id) from unnest(edges) as edge where edge.within is null)
            || array(
                select edge.prerequisite_id
                from (select distinct entry.run_group_id from unnest(entries) as entry) as joined_group
                cross join lateral pgbroker.open_edges_of_1(joined_group.run_group_id) as edge
            )
        ) as prerequisite
        where prerequisite.outcome > 0
    );
    if over <> '{}' then
        perform pgbroker.resolve_1(over, 1000000, interval '0', ids, true);
    end if;
    -- What a group waited for may have been met since its new members were told to wait.
    freed := array(
        select ids[entry.ordinal]
        from unnest(entries) as entry
        where entry.waits
          and entry.outcome is null
          and entry.run_group_id is not null
          and (entry.ordinal in (select edge.ordinal from unnest(edges) as edge)) is not true
          and (ids[entry.ordinal] in (select unnest(made))) is true
          and not pgbroker.is_held_1(ids[entry.ordinal])
    );
    if freed <> '{}' then
        perform pgbroker.decide_1(freed, null, null);
    end if;
end
$function$;

-- Refuse what closes a cycle: one of *nodes*, which others may wait for, waits, by way of *prerequisites*, for itself.
-- Nothing is walked where nobody waits for them.
create function pgbroker.refuse_cycle_1(nodes uuid[], prerequisites uuid[]) returns void
language plpgsql stable
    set enable_seqscan = off
as $function$
declare
    targets uuid[];
    met uuid;
begin
    targets := array(
        select node
        from unnest(nodes) as node
        where exists (select from pgbroker.open_edges_to_1(node) offset 0)
    );
    if targets = '{}' or prerequisites = '{}' then
        return;
    end if;
    with recursive reached (id) as (
        select unnest(prerequisites)
        union
        select next.id
        from reached
        cross join lateral (
            select edge.prerequisite_id as id
            from pgbroker.open_edges_of_1(reached.id) as edge
            union all
            -- A group waits for its members; of these only the ones that wait lead any further, and those that ended
            -- before they ran, since they may come back.
            select member.id
            from pgbroker.live_members_1(reached.id) as member
            where member.status in (1 /* waiting */, 5 /* blocked */)
            union all
            select member.id
            from pgbroker.bad_members_1(reached.id) as member
            where member.status in (11 /* failed */, 13 /* cancelled */)
            offset 0
        ) as next
    )
    select reached.id into met from reached where reached.id = any (targets) limit 1;
    if met is not null then
        raise exception 'pgbroker: what is added waits, by way of others, for % itself',
            coalesce((select format('run group %s', quote_literal(run_group.name)) from pgbroker.run_group where run_group.id = met), 'job ' || met)
            using errcode = 'PB001', hint = 'cyclic_dependency';
    end if;
end
$function$;
