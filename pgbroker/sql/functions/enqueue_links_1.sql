-- How entries come into their groups, and their edges into the table.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.
--
-- Sequential scans are off: whoever calls has his own settings, and a plan that was made when the tables were small stays.

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
