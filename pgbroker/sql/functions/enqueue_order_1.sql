-- In which order entries of one call depend on each other, how deep they are, and that nothing waits for itself.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.
--
-- Sequential scans are off: whoever calls has his own settings, and a plan that was made when the tables were small stays.

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
