-- Enqueue many plain jobs of one kind that wait for each other or for jobs that exist, in one group or in none: all of
-- them, or none. enqueue_plain_many_1 is the same for jobs that wait for nothing.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Jobs as enqueue_plain_many_1 takes them, and: the name of an open run group, or null; the name of each job in it, or
-- null for none. An edge is the place among new_ids of who waits, in ascending order, and what for: an earlier place, or
-- where that is null the id of a job that exists. on_failure is every edge's.
--
-- Returns when the jobs were created; null when they were not, and nothing was stored: enqueue_many_1 says why. A rule
-- lives there; here it may only be asked whether the jobs need it.
create function pgbroker.enqueue_linked_many_1(
    new_ids uuid[],
    type_name text,
    queue_name text,
    arguments jsonb,
    version int,
    rank int,
    attempts int,
    who text,
    correlation text,
    trace text,
    group_name text,
    names text[],
    edge_places int[],
    edge_on int[],
    edge_ids uuid[],
    policy text
) returns timestamptz
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    made constant timestamptz := statement_timestamp();
    size constant int := cardinality(new_ids);
    on_failure constant smallint := pgbroker.on_failure_1(policy);
    type_number int;
    queue_number smallint;
    group_id uuid;
    group_state smallint;
    outside uuid[];
    -- How deep what an edge waits for is, by the edge; known for jobs that exist.
    depths int[];
    levels int[];
    stored bigint;
    place int;
    edge int;
begin
    if jsonb_typeof(arguments) is distinct from 'array' or array_ndims(new_ids) > 1 then
        return null;
    end if;
    if jsonb_array_length(arguments) is distinct from size or array_position(new_ids, null) is not null
        or policy not in ('cancel', 'block', 'ignore')
        or cardinality(names) <> size or cardinality(edge_on) <> cardinality(edge_places)
        or cardinality(edge_ids) <> cardinality(edge_places)
        or names is not null and group_name is null then
        return null;
    end if;
    select kind.job_type_id, kind.queue_id
    into type_number, queue_number
    from pgbroker.plain_kind_1(
        tenant, type_name, queue_name, version, rank, attempts, who, correlation, trace
    ) as kind;
    if not found then
        return null;
    end if;

    if group_name is not null then
        -- The turn in the graph before the group, as everybody does.
        if edge_places <> '{}' and exists (
            select
            from pgbroker.run_group
            where run_group.tenant_id = tenant
              and run_group.name = group_name
              and run_group.opened_in <> pg_current_xact_id()::text::bigint
        ) then
            perform pgbroker.lock_graph_1(tenant);
        end if;
        select run_group.id, run_group.state into group_id, group_state
        from pgbroker.run_group
        where run_group.tenant_id = tenant and run_group.name = group_name
        for key share;
        if group_state is distinct from 0 /* open */ then
            return null;
        end if;
        -- What the group waits for, its members wait for; and where others wait for it, a cycle may come of it.
        if exists (select from pgbroker.open_edges_of_1(group_id))
            or edge_places <> '{}' and exists (select from pgbroker.open_edges_to_1(group_id)) then
            return null;
        end if;
    end if;

    outside := array(select distinct id from unnest(edge_ids) as id where id is not null);
    if outside <> '{}' then
        select count(*) into stored from pgbroker.job where job.id = any (outside) and (job.tenant_id = tenant) is true;
        if stored <> cardinality(outside) then
            return null;
        end if;
        depths := array(
            select coalesce(
                pgbroker.level_of_1(each.id),
                0
            )
            from unnest(edge_ids) with ordinality as each (id, ordinal)
            order by each.ordinal
        );
    end if;
    levels := array_fill(0, array[size]);
    place := 0;
    for edge in 1 .. coalesce(cardinality(edge_places), 0) loop
        if edge_places[edge] is null or edge_places[edge] not between greatest(place, 1) and size
            or (edge_on[edge] is null) = (edge_ids[edge] is null)
            or edge_on[edge] not between 1 and edge_places[edge] - 1 then
            return null;
        end if;
        place := edge_places[edge];
        levels[place] := greatest(levels[place], 1 + coalesce(levels[edge_on[edge]], depths[edge]));
        if levels[place] > 10000 then
            return null;
        end if;
    end loop;

    insert into pgbroker.job (
        id, queue_id, job_type_id, tenant_id, status, priority, ready_at, max_attempts, declared_attempts, run_group_id, name
    )
    select
        new_id, queue_number, type_number, tenant,
        case when level > 0 then 1 /* waiting */ else 2 /* ready */ end,
        rank,
        case when level = 0 then made + ordinal * interval '1 microsecond' end,
        attempts, attempts, group_id, name
    from rows from (unnest(new_ids), unnest(levels), unnest(names)) with ordinality as each (new_id, level, name, ordinal)
    on conflict do nothing;
    get diagnostics stored = row_count;
    if stored <> size then
        raise exception 'pgbroker: a job is not plain' using errcode = 'PB004';
    end if;
    insert into pgbroker.job_payload (job_id, tenant_id, type_version, args, principal, correlation_id, traceparent)
    select new_id, tenant, version, args, who, correlation, trace
    from rows from (unnest(new_ids), jsonb_array_elements(arguments)) as each (new_id, args)
    where pgbroker.is_envelope_1(args)
      and not pgbroker.longer_as_text_1(args, 67108864);
    get diagnostics stored = row_count;
    if stored <> size then
        raise exception 'pgbroker: a job is not plain' using errcode = 'PB004';
    end if;
    insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id, on_failure, level)
    select new_ids[each.place], coalesce(new_ids[each.earlier], each.id), 0, tenant, on_failure, levels[each.place]
    from unnest(edge_places, edge_on, edge_ids) as each (place, earlier, id);
    if exists (
        select from unnest(edge_places) as each (place) group by each.place having count(*) > 10000
    ) then
        raise exception 'pgbroker: a job is not plain' using errcode = 'PB004';
    end if;
    if outside <> '{}' then
        perform pgbroker.resolve_over_1(outside, new_ids);
    end if;
    return made;
-- A name, an id or an edge that is there already.
exception when sqlstate 'PB004' or program_limit_exceeded or unique_violation or check_violation then
    return null;
end
$function$;
