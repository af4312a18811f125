-- Repair what a restore or a fault has broken between jobs and what they wait for; and what is done with time.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Look at the next jobs and groups that wait, in the order of their ids from *after* on but for the first *skip*, and
-- repair those that do not stand where their edges say. Returns the last id of the page, null at the end, and the jobs and groups that were
-- repaired. What a pass is about to do is none.
create function pgbroker.reconcile_1(after uuid, most int, skip int, out last uuid, out repaired uuid[])
language plpgsql volatile
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
as $function$
declare
    page uuid[];
    stale uuid[];
    orphans uuid[];
    stuck uuid[];
begin
    select array_agg(waits.id order by waits.id), case when count(*) = most then max(waits.id::text)::uuid end
    into page, last
    from (
        select id
        from (
            (select job.id from pgbroker.job where job.status in (1 /* waiting */, 5 /* blocked */) and job.id > after order by job.id limit most + skip)
            union
            (
                select edge.dependent_id
                from pgbroker.job_dependency as edge
                where coalesce(edge.satisfied_at, 'infinity') = 'infinity' and edge.dependent_id > after
                order by edge.dependent_id
                limit most + skip
            )
            union
            (select run_group.id from pgbroker.run_group where run_group.state = 1 /* sealed */ and run_group.id > after order by run_group.id limit most + skip)
        ) as each (id)
        order by id
        offset skip
        limit most
    ) as waits;
    repaired := '{}';
    if page is null then
        return;
    end if;

    -- A prerequisite that is not there any more: nobody knows how it ended, so it counts as cancelled. Whoever holds the
    -- dependent is not waited for.
    orphans := array(
        select distinct edge.dependent_id
        from unnest(page) as waits (id)
        cross join lateral pgbroker.open_edges_of_1(waits.id) as edge
        where edge.outcome = 0
          and not exists (select from pgbroker.job where job.id = edge.prerequisite_id offset 0)
          and not exists (select from pgbroker.run_group where run_group.id = edge.prerequisite_id offset 0)
    );
    if orphans <> '{}' then
        orphans := pgbroker.lock_free_1(orphans);
        update pgbroker.job_dependency as edge
        set outcome = 13 /* cancelled */,
            satisfied_at = case when edge.on_failure = 2 /* ignore */ then statement_timestamp() end
        from unnest(orphans) as orphan (id)
        cross join lateral pgbroker.open_edges_of_1(orphan.id) as lost
        where edge.id = any (array[lost.id])
          and (edge.satisfied_at is null) is true
          and lost.outcome = 0
          and not exists (select from pgbroker.job where job.id = lost.prerequisite_id offset 0)
          and not exists (select from pgbroker.run_group where run_group.id = lost.prerequisite_id offset 0);
        -- A group is not decided about by its edges alone: by what follows.
        repaired := repaired || orphans;
    end if;

    -- An edge that says of its prerequisite what is not so, and nobody is about to look at it.
    select array_agg(distinct edge.prerequisite_id), array_agg(distinct edge.dependent_id)
    into stale, stuck
    from unnest(page) as waits (id)
    cross join lateral pgbroker.open_edges_of_1(waits.id) as edge
    cross join lateral pgbroker.prerequisites_1(array[edge.prerequisite_id]) as prerequisite
    where edge.outcome <> prerequisite.outcome
      and (edge.prerequisite_id in (select unresolved.prerequisite_id from pgbroker.unresolved)) is not true;
    if stale is not null then
        perform pgbroker.resolve_1(stale, most, interval '0', stuck, false);
        repaired := repaired || stuck;
    end if;

    -- A job that waits for nothing, and a group without a live member.
    stuck := array(
        select job.id
        from pgbroker.job
        where job.id = any (page)
          and (job.id in (select unresolved.prerequisite_id from pgbroker.unresolved)) is not true
          and (
              job.id = any (orphans)
              or job.status = 1 /* waiting */ and (not pgbroker.is_held_1(job.id) or pgbroker.is_stopped_1(job.id))
              or job.status = 5 /* blocked */ and not pgbroker.is_stopped_1(job.id) and not exists (
                  select from pgbroker.job_state where job_state.job_id = job.id and job_state.reason_code = 'reference_expired'
              )
              or job.status = 13 /* cancelled */ and not pgbroker.is_stopped_1(job.id) and pgbroker.comes_back_1(job.id)
          )
        order by job.id
        for no key update skip locked
    );
    if stuck <> '{}' then
        perform pgbroker.decide_1(stuck, null, null);
        repaired := repaired || stuck;
    end if;
    stuck := array(
        select run_group.id
        from pgbroker.run_group
        where run_group.id = any (page)
          and run_group.state = 1 /* sealed */
          and (run_group.id in (select unresolved.prerequisite_id from pgbroker.unresolved)) is not true
        for no key update skip locked
    );
    if stuck <> '{}' then
        stuck := pgbroker.finish_groups_1(stuck, interval '0');
        if stuck <> '{}' then
            perform pgbroker.resolve_1(stuck, most, interval '0', null, true);
            repaired := repaired || stuck;
        end if;
    end if;
    -- A cancel of a group that did not come to its end.
    stuck := array(
        select member.id
        from pgbroker.run_group
        cross join lateral pgbroker.live_members_1(run_group.id) as member
        where run_group.id = any (page)
          and run_group.state = 1 /* sealed */
          and run_group.cancel_requested_at < statement_timestamp() - interval '1 minute'
          and member.cancel_requested_at is null
        limit most
    );
    if stuck <> '{}' then
        perform pgbroker.cancel_jobs_1(stuck, '', '');
        repaired := repaired || stuck;
    end if;
    repaired := array(select distinct id from unnest(repaired) as id order by id);
end
$function$;

-- Tell whether a job waits for something that has ended badly, and of which no pass is about to see that it has not.
create function pgbroker.is_stopped_1(job uuid) returns boolean
language plpgsql stable
    -- Asked of each job of many: planned anew, that costs ten times as much as it does.
    set plan_cache_mode = force_generic_plan
as $function$
begin
    return exists (
        select
        from pgbroker.bad_edges_of_1(job) as edge
        where not pgbroker.is_alive_1(edge.prerequisite_id)
    );
end
$function$;

-- Turn references to what was still to come into edges, once it is there, and end those whose time is over as if what
-- they name had failed. From the id *after* on, but for the first *skip*; returns the last id of the page, null at the end, and how many it dealt
-- with. Each in its tenant; where somebody is just adding to that tenant's graph, later.
create function pgbroker.resolve_deferred_1(after bigint, most int, skip int, out last bigint, out settled int)
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    tenant_before constant text := coalesce(current_setting('pgbroker.tenant_id', true), '');
    scope_before constant text := coalesce(current_setting('pgbroker.scope', true), '');
    deferred record;
    sealed boolean;
    refusal text;
begin
    settled := 0;
    last := null;
    for deferred in
        select
            each.*,
            named.group_id,
            named.job_id,
            each.deadline_at <= statement_timestamp() as is_over,
            row_number() over (order by each.id) as place
        from (
            select *
            from pgbroker.deferred_reference
            where id > after
              and expired_at is null
            order by id, expired_at
            offset skip
            limit most
        ) as each
        left join lateral pgbroker.named_1(each.tenant_id, each.group_name, each.job_name) as named on true
        order by each.id
    loop
        if deferred.place = most then
            last := deferred.id;
        end if;
        sealed := case when deferred.job_name is null then deferred.group_id is not null else deferred.job_id is not null end;
        continue when not sealed and not deferred.is_over;
        perform set_config('pgbroker.scope', '', true), set_config('pgbroker.tenant_id', deferred.tenant_id, true);
        if pg_try_advisory_xact_lock(hashtextextended('pgbroker.graph ' || deferred.tenant_id, 0)) then
            perform pgbroker.count_turn_1(deferred.tenant_id);
            -- Whoever holds the job changes it: later.
            perform from pgbroker.job where job.id = deferred.dependent_id for no key update skip locked;
            -- Nor may another pass have dealt with it since this page was read.
            if found and exists (
                select from pgbroker.deferred_reference as still where still.id = deferred.id and still.expired_at is null
            ) then
                refusal := case when not sealed then 'it was not there in time' end;
                if sealed then
                    begin
                        perform pgbroker.refuse_cycle_1(
                            array_remove(
                                array[deferred.dependent_id, (select job.run_group_id from pgbroker.job where job.id = deferred.dependent_id)],
                                null
                            ),
                            array[coalesce(deferred.job_id, deferred.group_id)]
                        );
                        if coalesce(deferred.job_id, deferred.group_id) in (
                            select unnest(array[job.id, job.run_group_id]) from pgbroker.job where job.id = deferred.dependent_id
                        ) then
                            raise exception 'the job itself' using errcode = 'PB001', hint = 'self_dependency';
                        end if;
                        perform pgbroker.add_deferred_1(
                            deferred.dependent_id, deferred.job_id, deferred.group_id, deferred.tenant_id, deferred.on_failure
                        );
                    exception when sqlstate 'PB001' then
                        get stacked diagnostics refusal = pg_exception_hint;
                        refusal := case refusal
                            when 'dependency_too_deep' then 'the chain would be longer than 10000 jobs'
                            else 'the job would wait for itself'
                        end;
                    end;
                end if;
                if refusal is null or deferred.on_failure = 2 /* ignore */ then
                    delete from pgbroker.deferred_reference where id = deferred.id;
                else
                    -- A retry looks it up again.
                    update pgbroker.deferred_reference set expired_at = statement_timestamp() where id = deferred.id;
                end if;
                if refusal is null then
                    perform pgbroker.resolve_over_1(
                        array[coalesce(deferred.job_id, deferred.group_id)], array[deferred.dependent_id]
                    );
                    perform pgbroker.decide_1(array[deferred.dependent_id], null, null);
                else
                    perform pgbroker.expire_reference_1(
                        deferred.dependent_id,
                        deferred.on_failure,
                        format(
                            'it waited for %s: %s',
                            pgbroker.reference_words_1(deferred.group_name, deferred.job_name),
                            refusal
                        )
                    );
                end if;
                settled := settled + 1;
            end if;
        end if;
        perform set_config('pgbroker.scope', scope_before, true), set_config('pgbroker.tenant_id', tenant_before, true);
    end loop;
end
$function$;

-- Add the edge of a job, whose row the caller has locked, to what it has waited for by name. Raises dependency_too_deep.
create function pgbroker.add_deferred_1(dependent uuid, to_job uuid, to_group uuid, tenant text, policy smallint) returns void
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    deepest constant int := 1 + coalesce(
        case
            when to_job is not null then pgbroker.level_of_1(to_job)
            else (select run_group.level from pgbroker.run_group where run_group.id = to_group)
        end,
        0
    );
    before constant int := pgbroker.level_of_1(dependent);
begin
    if deepest > 10000 then
        raise exception 'the chain is longer than 10000 jobs' using errcode = 'PB001', hint = 'dependency_too_deep';
    end if;
    insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id, on_failure, level)
    values (
        dependent,
        coalesce(to_job, to_group),
        case when to_job is null then 1 else 0 end,
        tenant,
        policy,
        greatest(deepest, before)
    )
    on conflict do nothing;
    perform pgbroker.deepen_1(dependent, coalesce(before, 0));
end
$function$;

-- Do to a job, whose row the caller has locked, what it asked for in case that a reference comes to nothing.
create function pgbroker.expire_reference_1(dependent uuid, policy smallint, why text) returns void
language plpgsql volatile as $function$
begin
    if policy = 2 /* ignore */ then
        perform pgbroker.decide_1(array[dependent], null, null);
        return;
    end if;
    with ended as (
        update pgbroker.job
        set status = case when policy = 1 /* block */ then 5 /* blocked */ else 13 /* cancelled */ end,
            finished_at = case when policy <> 1 /* block */ then statement_timestamp() end
        where job.id = dependent
          and (job.status = 1 /* waiting */ or job.status = 5 /* blocked */ and policy = 0 /* cancel */)
        returning job.id, job.tenant_id
    ),
    -- One that a prerequisite has stopped already must not run when that comes back.
    stopped as (
        select job.id, job.tenant_id
        from pgbroker.job
        join pgbroker.job_state as state on state.job_id = job.id and state.reason_code = 'prerequisite_failed'
        where job.id = dependent
          and job.status in (5 /* blocked */, 13 /* cancelled */)
    )
    insert into pgbroker.job_state (job_id, tenant_id, reason_code, reason)
    select touched.id, touched.tenant_id, 'reference_expired', why
    from (select * from ended union select * from stopped) as touched
    on conflict (job_id) do update
    set reason_code = excluded.reason_code,
        reason = excluded.reason,
        by = '',
        cause_id = null,
        changed_at = statement_timestamp();
end
$function$;
