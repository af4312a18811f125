-- Run groups: open, seal, cancel; and edges that are added to a job that exists.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Open a run group of the caller's tenant and return its id. Jobs are added with the entry's key group until it is
-- sealed. Keys of options: tolerate_count or tolerate_percent, on_completed and on_failed (each an entry of
-- enqueue_many_1, enqueued when the group ends so), depends_on (references, as an entry has them; each member waits for
-- them too) and on_failure.
--
-- A refusal is an error with errcode PB001 whose hint is pgbroker's error code: group_exists, dependency_not_found and
-- the others of an entry.
create function pgbroker.open_group_1(name text, options jsonb default '{}') returns uuid
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    group_id constant uuid := pgbroker.uuid7_1();
    strange text;
    callback text;
    entry pgbroker.enqueue_entry_1;
    edges pgbroker.edge_1[];
    refused record;
begin
    if tenant ~ '[^A-Za-z0-9._-]' or length(tenant) not between 1 and 63 then
        raise exception 'pgbroker.tenant_id % is not a tenant id: 1 to 63 of A-Z, a-z, 0-9, ".", "_", "-"', quote_literal(left(tenant, 80))
            using errcode = 'PB001', hint = 'invalid_tenant';
    end if;
    if name is null or length(name) not between 1 and 255 then
        raise exception 'the name of a run group is empty or longer than 255 characters'
            using errcode = 'PB001', hint = 'invalid_option';
    end if;
    if jsonb_typeof(options) is distinct from 'object' then
        raise exception 'options is of type %, not an object', coalesce(jsonb_typeof(options), 'null')
            using errcode = 'PB001', hint = 'invalid_option';
    end if;
    strange := (
        select min(key)
        from jsonb_object_keys(
            options - '{tolerate_count,tolerate_percent,on_completed,on_failed,depends_on,on_failure}'::text[]
        ) as key
    );
    if strange is not null then
        raise exception 'there is no option %. Use tolerate_count, tolerate_percent, on_completed, on_failed, depends_on, on_failure', to_jsonb(left(strange, 80))
            using errcode = 'PB001', hint = 'invalid_option';
    end if;
    strange := coalesce(
        pgbroker.number_misfit_1(
            'tolerate_count', nullif(options -> 'tolerate_count', 'null'), 0, 2147483647, 'a whole number of members, 0 or more'
        ),
        case when (options ->> 'tolerate_count')::numeric % 1 <> 0 then format(
            'tolerate_count is %s. Give a whole number of members, 0 or more.', options -> 'tolerate_count'
        ) end,
        pgbroker.number_misfit_1(
            'tolerate_percent', nullif(options -> 'tolerate_percent', 'null'), 0, 100, 'a number from 0 to 100'
        ),
        case when options ->> 'tolerate_count' is not null and options ->> 'tolerate_percent' is not null then 'tolerate_count and tolerate_percent were both given. Give one.' end,
        pgbroker.links_misfit_1(null, null, options -> 'depends_on', options ->> 'on_failure')
    );
    if strange is not null then
        raise exception '%', strange using errcode = 'PB001', hint = 'invalid_option';
    end if;
    foreach callback in array array['on_completed', 'on_failed'] loop
        if jsonb_typeof(options -> callback) <> 'null' then
            select each.outcome, each.detail into refused from pgbroker.callback_refusal_1(options -> callback) as each;
            if refused.outcome is not null then
                raise exception '%: %', callback, refused.detail using errcode = 'PB001', hint = refused.outcome;
            end if;
        end if;
    end loop;

    insert into pgbroker.run_group (id, tenant_id, name, tolerate_count, tolerate_percent, on_completed, on_failed)
    values (
        group_id,
        tenant,
        open_group_1.name,
        (options ->> 'tolerate_count')::numeric::int,
        (options ->> 'tolerate_percent')::double precision,
        nullif(options -> 'on_completed', 'null'),
        nullif(options -> 'on_failed', 'null')
    )
    on conflict on constraint run_group_name_unique do nothing;
    if not found then
        raise exception 'run group % exists', quote_literal(name)
            using errcode = 'PB001', hint = 'group_exists';
    end if;

    if options -> 'depends_on' not in ('null', '[]') then
        entry.ordinal := 1;
        entry.id := group_id;
        entry.depends_on := options -> 'depends_on';
        entry.on_failure := pgbroker.on_failure_1(options ->> 'on_failure');
        edges := pgbroker.references_1(array[entry]);
        perform pgbroker.refuse_edges_1(edges, 'a run group waits for what exists. Leave within_seconds out.');
        insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id, on_failure, level)
        select group_id, edge.prerequisite_id, edge.kind + 2, tenant, edge.on_failure, edge.level
        from unnest(edges) as edge;
        update pgbroker.run_group
        set level = (select max(edge.level) from unnest(edges) as edge)
        where id = group_id;
        perform pgbroker.resolve_over_1(array(select edge.prerequisite_id from unnest(edges) as edge), array[group_id]);
    end if;
    return group_id;
end
$function$;

-- Say what is wrong with the entry of a callback: a code and words, null when nothing is. It is read as it will be when
-- the time comes, since what is refused then would be too late. What it enqueues must not have to wait for anybody: that
-- would keep the group's last member from being settled.
create function pgbroker.callback_refusal_1(entry jsonb, out outcome text, out detail text)
language plpgsql stable as $function$
declare
    misfits jsonb;
begin
    if jsonb_typeof(entry) = 'object' then
        detail := (
            select format('%s is not for a callback, which is enqueued once and waits for nobody', min(given.key))
            from jsonb_each(entry) as given (key, value)
            where given.key in ('id', 'idempotency_key', 'group', 'name', 'depends_on')
              and given.value not in ('null', '[]')
            having count(*) > 0
        );
        if detail is not null then
            outcome := 'invalid_option';
            return;
        end if;
        misfits := pgbroker.enqueue_unknown_keys_1(jsonb_build_array(entry));
    end if;
    if misfits is null and pgbroker.enqueue_misfit_1(entry) is not null then
        misfits := jsonb_build_object('1', pgbroker.enqueue_misfit_1(entry));
    end if;
    select each.outcome, each.detail
    into outcome, detail
    from pgbroker.enqueue_entries_1(jsonb_build_array(case when misfits is null then entry else '{}' end), misfits) as each;
end
$function$;

-- Raise the first refusal among edges; *no_deferred* is what to say of a reference to what is still to come, null where
-- there may be such.
create function pgbroker.refuse_edges_1(edges pgbroker.edge_1[], no_deferred text) returns void
language plpgsql stable as $function$
declare
    refused record;
begin
    select * into refused
    from unnest(edges) as edge
    where edge.refusal is not null or no_deferred is not null and edge.within is not null
    limit 1;
    if found then
        raise exception '%', coalesce(refused.detail, no_deferred)
            using errcode = 'PB001', hint = coalesce(refused.refusal, 'invalid_option');
    end if;
end
$function$;

-- Let new edges, of these dependents, to what is over already say so at once. They are looked at once more when the
-- transaction commits.
create function pgbroker.resolve_over_1(prerequisites uuid[], dependents uuid[]) returns void
language plpgsql volatile as $function$
declare
    over constant uuid[] := array(
        select prerequisite.id from pgbroker.prerequisites_1(prerequisites) as prerequisite where prerequisite.outcome > 0
    );
begin
    if over <> '{}' then
        perform pgbroker.resolve_1(over, 1000000, interval '0', dependents, true);
    end if;
end
$function$;

-- Seal a group: nothing is added any more, and it ends when its last member has. Waits for transactions that are just
-- adding to it. Returns the group's state, which for an empty group is an end already; null where there is no group.
create function pgbroker.seal_group_1(group_id uuid) returns smallint
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    deepest int;
begin
    perform from pgbroker.run_group where run_group.id = group_id for update;
    update pgbroker.run_group
    set state = 1 /* sealed */,
        sealed_at = statement_timestamp(),
        level = greatest(level, coalesce(
            (select max(pgbroker.level_of_1(job.id)) from pgbroker.job where job.run_group_id = group_id),
            0
        ))
    where run_group.id = group_id
      and run_group.state = 0 /* open */
    returning level into deepest;
    if found then
        -- Too deep by now for those that wait already, it may be: they do, and nothing more comes below them.
        perform pgbroker.lift_1(group_id, deepest);
        perform pgbroker.resolve_ended_1(array[group_id]);
    end if;
    return (select run_group.state from pgbroker.run_group where run_group.id = group_id);
end
$function$;

-- Make a job that exists wait for more. It may be scheduled, ready, waiting or blocked; one that runs or is over is too
-- late. Returns how many edges are new. A refusal is an error, as open_group_1's.
create function pgbroker.add_dependencies_1(job_id uuid, depends_on jsonb, on_failure text default 'cancel') returns int
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    dependent record;
    entry pgbroker.enqueue_entry_1;
    edges pgbroker.edge_1[];
    misfit constant text := pgbroker.links_misfit_1(null, null, depends_on, on_failure);
    deferred int;
    added int;
    before int;
begin
    if misfit is not null then
        raise exception '%', misfit using errcode = 'PB001', hint = 'invalid_option';
    end if;
    perform pgbroker.lock_graph_1(tenant);
    select job.id, job.status, job.run_group_id, run_group.name as group_name into dependent
    from pgbroker.job
    left join pgbroker.run_group on run_group.id = job.run_group_id
    where job.id = add_dependencies_1.job_id
      and (job.tenant_id = tenant) is true
    for no key update of job;
    if not found then
        raise exception 'there is no job %', job_id using errcode = 'PB001', hint = 'job_not_found';
    elsif dependent.status not in (0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 5 /* blocked */) then
        raise exception 'job % runs or is over: it waits for nothing any more', job_id
            using errcode = 'PB001', hint = 'dependency_too_late';
    end if;
    entry.ordinal := 1;
    entry.id := dependent.id;
    entry.run_group_id := dependent.run_group_id;
    entry.group_name := dependent.group_name;
    entry.depends_on := nullif(add_dependencies_1.depends_on, 'null');
    entry.on_failure := pgbroker.on_failure_1(add_dependencies_1.on_failure);
    edges := pgbroker.references_1(array[entry]);
    -- The entry itself counts as one of the call.
    perform pgbroker.refuse_edges_1(edges, null);
    if exists (
        select
        from (select known.prerequisite_id from pgbroker.job_dependency as known where known.dependent_id = dependent.id offset 0) as known
        where (known.prerequisite_id in (select edge.prerequisite_id from unnest(edges) as edge)) is true
    )
    or exists (
        select
        from unnest(edges) as edge
        join pgbroker.deferred_reference as known
            on known.dependent_id = dependent.id
            and known.group_name = edge.group_name
            and known.job_name is not distinct from edge.job_name
        where edge.within is not null
    ) then
        raise exception 'job % depends on one of them already', job_id using errcode = 'PB001', hint = 'duplicate_dependency';
    end if;
    if (select count(*) from pgbroker.job_dependency as known where known.dependent_id = dependent.id) + cardinality(edges) > 10000 then
        raise exception 'a job depends on at most 10000 others' using errcode = 'PB001', hint = 'too_many_dependencies';
    end if;
    perform pgbroker.refuse_cycle_1(
        array_remove(array[dependent.id, dependent.run_group_id], null),
        array(select edge.prerequisite_id from unnest(edges) as edge where edge.within is null)
    );
    insert into pgbroker.deferred_reference (dependent_id, tenant_id, group_name, job_name, on_failure, deadline_at)
    select dependent.id, tenant, edge.group_name, edge.job_name, edge.on_failure, statement_timestamp() + edge.within
    from unnest(edges) as edge
    where edge.within is not null
    on conflict do nothing;
    get diagnostics deferred = row_count;
    update pgbroker.job
    set status = 1 /* waiting */,
        ready_at = null
    where job.id = dependent.id
      and job.status in (0 /* scheduled */, 2 /* ready */)
      and cardinality(edges) > 0;
    before := pgbroker.level_of_1(dependent.id);
    insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id, on_failure, level)
    select dependent.id, edge.prerequisite_id, edge.kind, tenant, edge.on_failure, edge.level
    from unnest(edges) as edge
    where edge.within is null;
    get diagnostics added = row_count;
    perform pgbroker.deepen_1(dependent.id, coalesce(before, 0));
    perform pgbroker.resolve_over_1(
        array(select edge.prerequisite_id from unnest(edges) as edge where edge.within is null), array[dependent.id]
    );
    return added + deferred;
end
$function$;

-- Let all edges of a job, whose row the caller has locked, have its level, now that it has new ones; who waits for it is
-- deeper with it, if it is deeper than *before*. Raises dependency_too_deep.
create function pgbroker.deepen_1(dependent uuid, before int) returns void
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    deepest constant int := (select max(known.level) from pgbroker.job_dependency as known where known.dependent_id = dependent);
begin
    update pgbroker.job_dependency as edge
    set level = deepest
    where edge.dependent_id = dependent
      and edge.level < deepest;
    if deepest > before and pgbroker.lift_1(dependent, deepest) > 10000 then
        raise exception 'the chain is longer than 10000 jobs' using errcode = 'PB001', hint = 'dependency_too_deep';
    end if;
end
$function$;

-- Raise the levels of those that wait for a job or a group, now that it has this one, and of those below them, to 10000 at
-- most. Returns the deepest level below, which may be more. Only what is open: the rest has run. One that somebody holds
-- stays as it is, so that nobody is waited for: a level is for the limit and for pictures, and decides about nobody.
create function pgbroker.lift_1(node uuid, level int) returns int
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    ids uuid[];
    levels int[];
    locked uuid[];
begin
    if not exists (select from pgbroker.open_edges_to_1(node))
        and not exists (select from pgbroker.job where job.id = node and job.run_group_id is not null)
    then
        return level;
    end if;
    with recursive risen (id, level) as (
        select lift_1.node, lift_1.level
        union
        select next.id, next.level
        from risen
        cross join lateral (
            select edge.dependent_id as id, risen.level + 1 as level
            from pgbroker.open_edges_to_1(risen.id) as edge
            cross join lateral (
                select case
                    when edge.kind < 2 then pgbroker.level_of_1(edge.dependent_id)
                    else (select held.level from pgbroker.run_group as held where held.id = any (array[edge.dependent_id]))
                end as level
                offset 0
            ) as known
            where known.level <= risen.level
            union all
            -- A group that is sealed is as deep as its deepest member; of an open one that is counted when it is sealed.
            select held.id, risen.level
            from pgbroker.job as member
            cross join lateral (
                select run_group.id, run_group.state, run_group.level
                from pgbroker.run_group
                where run_group.id = any (array[member.run_group_id])
                offset 0
            ) as held
            where member.id = any (array[risen.id])
              and held.state = 1 /* sealed */
              and held.level < risen.level
            offset 0
        ) as next
        where risen.level <= 10000
    )
    select array_agg(deepest.id), array_agg(deepest.level)
    into ids, levels
    from (
        -- One job is met once for each length of the ways to it: in some graphs that has no end. Then the deepest ones
        -- stay as they are.
        select met.id, max(met.level) as level
        from (select risen.id, risen.level from risen limit 50000) as met
        where met.id <> node
        group by met.id
    ) as deepest;
    if ids is null then
        return level;
    end if;
    locked := array(select job.id from pgbroker.job where job.id = any (ids) order by job.id for no key update skip locked);
    update pgbroker.job_dependency as edge
    set level = least(risen.level, 10000)
    from unnest(ids, levels) as risen (id, level)
    where edge.dependent_id = any (array[risen.id])
      and (risen.id in (select unnest(locked))) is true
      and edge.level < least(risen.level, 10000);
    locked := array(
        select run_group.id from pgbroker.run_group where run_group.id = any (ids) order by run_group.id for no key update skip locked
    );
    update pgbroker.run_group
    set level = least(risen.level, 10000)
    from unnest(ids, levels) as risen (id, level)
    where run_group.id = any (array[risen.id])
      and (risen.id in (select unnest(locked))) is true;
    return (select max(each.level) from unnest(levels || lift_1.level) as each (level));
end
$function$;
