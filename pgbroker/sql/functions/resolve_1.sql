-- What the end of a job or a group means for those that wait for it.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.
--
-- Everything here follows from what is true when it looks, not from what has just happened: an end, a revival, a late
-- edge and a repair are the same work, and doing it twice changes nothing. Nobody is waited for: a dependent that
-- somebody holds is left to a pass, since whoever ends a job may be settling five hundred at once.

-- Resolve the dependents of jobs and groups, at most so many; returns how many edges were looked at. What is left over
-- is noted in pgbroker.unresolved, to be looked at again not before *later*.
--
-- *chosen* are the dependents to look at, null for all. *held* says that what the prerequisites are cannot change before
-- this transaction ends: it has ended them itself, or locked them, or looks only at its own edges, which others see
-- when it has looked again. Otherwise they are locked here, and one that somebody is just ending is left to a pass.
--
-- "in ... is true" keeps a look-up in an array a hashed one, where the join that the planner makes of it is quadratic.
create function pgbroker.resolve_1(prerequisites uuid[], most int, later interval, chosen uuid[], held boolean) returns int
language plpgsql volatile as $function$
declare
    before constant text := coalesce(current_setting('pgbroker.resolving', true), '');
    mine uuid[] := prerequisites;
    edges bigint[];
    dependents uuid[];
    ended uuid[];
    outcomes smallint[];
    policies smallint[];
    falls bigint[];
    lower uuid[];
    above uuid[];
    roots uuid[];
    locked uuid[];
    noted bigint := 0;
    more bigint;
    left_over bigint := 0;
    is_short boolean := false;
begin
    perform set_config('pgbroker.resolving', 'on', true);
    if not held then
        mine := array(
            select job.id from pgbroker.job where job.id = any (prerequisites) order by job.id for share skip locked
        ) || array(
            select run_group.id from pgbroker.run_group where run_group.id = any (prerequisites) order by run_group.id for share skip locked
        );
    end if;
    perform pgbroker.finish_groups_1(mine, later);

    -- An edge that says of its prerequisite what is no longer so.
    select array_agg(stale.id), array_agg(stale.dependent_id), array_agg(stale.prerequisite_id), array_agg(stale.outcome), array_agg(stale.on_failure)
    into edges, dependents, ended, outcomes, policies
    from (
        select edge.id, edge.dependent_id, edge.prerequisite_id, prerequisite.outcome, edge.on_failure
        from pgbroker.prerequisites_1(mine) as prerequisite
        cross join lateral (
            select waiting.id, waiting.dependent_id, waiting.prerequisite_id, waiting.on_failure
            from pgbroker.open_edges_to_1(prerequisite.id) as waiting
            where waiting.outcome <> prerequisite.outcome
              and (chosen is null or (waiting.dependent_id in (select unnest(chosen))) is true)
            limit most
        ) as edge
        limit most
    ) as stale;

    if dependents is not null then
        -- What falls with them, level after level: one statement for all of it, not one for each.
        select array_agg(falling.id), array_agg(falling.dependent_id), array_agg(falling.prerequisite_id), array_agg(falling.root_id)
        into falls, lower, above, roots
        from pgbroker.falling_1(dependents, ended, outcomes, policies, most - cardinality(dependents)) as falling;
        -- The dependents first, their edges in a later statement: this one's snapshot may miss what another has just
        -- committed, and two prerequisites that end together must not each see the other as unfinished.
        locked := array(
            select job.id
            from pgbroker.job
            where job.id = any (dependents || lower)
            order by job.id
            for no key update skip locked
        ) || array(
            select run_group.id
            from pgbroker.run_group
            where run_group.id = any (dependents)
            order by run_group.id
            for no key update skip locked
        );
        locked := array(select id from unnest(locked) as id except select * from unnest(pgbroker.keys_in_use_1(locked)) as id);
        is_short := cardinality(locked) < (select count(distinct id) from unnest(dependents || lower) as id);
        if is_short then
            -- What hangs on one that somebody holds must wait for it; the others come to it level by level.
            lower := null;
        end if;
        update pgbroker.job_dependency as edge
        set outcome = stale.outcome,
            satisfied_at = case
                when stale.outcome = 10 /* completed */ or stale.outcome > 0 and edge.on_failure = 2 /* ignore */
                    then statement_timestamp()
            end
        from (
            select * from unnest(edges, dependents, outcomes) as first (id, dependent_id, outcome)
            union all
            select fallen.id, fallen.dependent_id, 13 /* cancelled */
            from unnest(falls, lower) as fallen (id, dependent_id)
        ) as stale
        where edge.id = any (array[stale.id])
          and (stale.dependent_id in (select unnest(locked))) is true
          -- As a value, so that only the primary key is a way in.
          and (edge.satisfied_at is null) is true;
        perform pgbroker.decide_1(locked, lower, roots);
        if lower is not null then
            -- One that somebody unblocked meanwhile did not fall: what fell with it comes back.
            insert into pgbroker.unresolved (prerequisite_id, tenant_id)
            select stands.id, stands.tenant_id
            from pgbroker.prerequisites_1(array(select distinct id from unnest(above) as id)) as stands
            where stands.outcome = 0;
            get diagnostics noted = row_count;
        end if;
        -- A group that failed for what it waited for, which lives again: it has no member to bring it back, perhaps.
        with reopened as (
            update pgbroker.run_group
            set state = 1 /* sealed */,
                finished_at = null
            where run_group.id = any (locked)
              and run_group.state = 11 /* failed */
              and not exists (
                  select
                  from pgbroker.open_edges_of_1(run_group.id) as edge
                  where edge.outcome > 0
                    and edge.on_failure = 0 /* cancel */
              )
            returning run_group.id, run_group.tenant_id
        )
        insert into pgbroker.unresolved (prerequisite_id, tenant_id)
        select reopened.id, reopened.tenant_id
        from reopened;
        get diagnostics more = row_count;
        noted := noted + more;
        -- A group whose own prerequisites are met may be over; it has no members that would say so.
        insert into pgbroker.unresolved (prerequisite_id, tenant_id)
        select prerequisite.id, prerequisite.tenant_id
        from pgbroker.prerequisites_1(pgbroker.finish_groups_1(locked, later)) as prerequisite;
        get diagnostics more = row_count;
        noted := noted + more;
    end if;

    if cardinality(mine) < cardinality(prerequisites) or cardinality(dependents) >= most or is_short then
        insert into pgbroker.unresolved (prerequisite_id, tenant_id, not_before)
        select
            prerequisite.id,
            prerequisite.tenant_id,
            -- What is only too much for one time goes on at once; what somebody holds, later.
            statement_timestamp() + case when cardinality(dependents) >= most then interval '0' else later end
        from pgbroker.prerequisites_1(prerequisites) as prerequisite
        where (prerequisite.id in (select unnest(mine))) is not true
           or exists (
               select
               from pgbroker.open_edges_to_1(prerequisite.id) as edge
               where edge.outcome <> prerequisite.outcome
                 and (chosen is null or (edge.dependent_id in (select unnest(chosen))) is true)
               offset 0
           );
        get diagnostics left_over = row_count;
    end if;
    if noted + left_over > 0 and before <> 'on' then
        perform pg_notify('pgbroker', '*resolve');
    end if;
    perform set_config('pgbroker.resolving', before, true);
    return coalesce(cardinality(dependents), 0);
end
$function$;

-- Say of each of these ids, jobs or groups, whose it is and how it ended; outcome 0 while it lives.
create function pgbroker.prerequisites_1(ids uuid[])
returns table (id uuid, tenant_id text, outcome smallint)
language sql stable rows 10 as $function$
    select job.id, job.tenant_id::text, case when job.status >= 10 then job.status else 0::smallint end
    from unnest(ids) as each (id)
    join pgbroker.job on job.id = any (array[each.id])
    union all
    select run_group.id, run_group.tenant_id::text, case when run_group.state >= 10 then run_group.state else 0::smallint end
    from unnest(ids) as each (id)
    join pgbroker.run_group on run_group.id = any (array[each.id])
$function$;

-- List the edges by which others fall with these dependents: those to whom a prerequisite that ended badly does the same
-- as to their prerequisite, cancel, and so on. root_id is the prerequisite at the head. Of edges that are satisfied, or
-- of a group, nothing falls. Each edge once, at most so many.
create function pgbroker.falling_1(
    dependents uuid[], prerequisites uuid[], outcomes smallint[], policies smallint[], most int
)
returns table (id bigint, dependent_id uuid, prerequisite_id uuid, root_id uuid)
language plpgsql stable as $function$
begin
    if most <= 0 or not exists (select from unnest(outcomes) as outcome where outcome > 10) then
        return;
    end if;
    return query
        -- Each step is a look-up of its own, in this order.
        with recursive falling (id, dependent_id, prerequisite_id, root_id) as (
            select null::bigint, first.dependent_id, null::uuid, first.prerequisite_id
            from unnest(dependents, prerequisites, outcomes, policies)
                as first (dependent_id, prerequisite_id, outcome, on_failure)
            cross join lateral (
                select
                from pgbroker.job
                where job.id = any (array[first.dependent_id])
                  and job.status + 0 in (1 /* waiting */, 5 /* blocked */)
                offset 0
            ) as dependent
            where first.outcome > 10
              and first.on_failure = 0 /* cancel */
            union
            select edge.id, edge.dependent_id, edge.prerequisite_id, falling.root_id
            from falling
            cross join lateral (
                select next.id, next.dependent_id, next.prerequisite_id
                from pgbroker.open_edges_to_1(falling.dependent_id) as next
                where next.outcome = 0
                  and next.kind = 0
                  and next.on_failure = 0 /* cancel */
                limit most
            ) as edge
            cross join lateral (
                select
                from pgbroker.job
                where job.id = any (array[edge.dependent_id])
                  and job.status + 0 in (1 /* waiting */, 5 /* blocked */)
                offset 0
            ) as dependent
        )
        select falling.id, falling.dependent_id, falling.prerequisite_id, falling.root_id
        from falling
        where falling.prerequisite_id is not null
        limit most;
end
$function$;

-- Put jobs, whose rows the caller has locked, where their edges say they belong: an edge that ended badly cancels or
-- blocks, an open one keeps waiting, none sets free. Only what waits, is blocked, or was cancelled because of an edge.
-- *roots* are the prerequisites at the head of those that *fallen* fell with.
create function pgbroker.decide_1(dependents uuid[], fallen uuid[], roots uuid[]) returns void
language plpgsql volatile as $function$
declare
    freed smallint[];
    returned uuid[];
begin
    with judged as materialized (
        select
            job.id,
            job.status,
            job.tenant_id,
            given.place,
            case
                when bad.on_failure = 0 /* cancel */ then 13 /* cancelled */
                when bad.on_failure = 1 /* block */ or expired.so then 5 /* blocked */
                when exists (select from pgbroker.open_edges_of_1(job.id) offset 0) or exists (
                    select from pgbroker.deferred_reference as deferred where deferred.dependent_id = job.id offset 0
                ) then 1 /* waiting */
                when job.available_at > statement_timestamp() then 0 /* scheduled */
                else 2 /* ready */
            end as target,
            bad.prerequisite_id,
            bad.outcome,
            coalesce(given.root_id, bad.prerequisite_id) as root_id,
            expired.so as is_expired
        from (
            select each.id, (array_agg(each.root_id) filter (where each.root_id is not null))[1] as root_id, row_number() over (order by each.id) as place
            from (
                select id, null::uuid as root_id from unnest(dependents) as id
                union all
                select * from unnest(fallen, roots) as fell (id, root_id)
            ) as each
            group by each.id
        ) as given
        join pgbroker.job on job.id = any (array[given.id])
        left join lateral (
            select ended.on_failure, ended.prerequisite_id, ended.outcome
            from (
                select edge.on_failure, edge.prerequisite_id, edge.outcome
                from pgbroker.open_edges_of_1(job.id) as edge
                where edge.outcome > 0
                order by edge.on_failure, edge.prerequisite_id
                offset 0
            ) as ended
            -- One that has come back since, a pass is about to look at. What it fell with, falls in this statement.
            where given.root_id is not null or not pgbroker.is_alive_1(ended.prerequisite_id)
            limit 1
        ) as bad on true
        -- What a job waited for by name did not come: that is an edge no more, and for people to decide.
        cross join lateral (
            select job.status = 5 /* blocked */ and exists (
                select from pgbroker.job_state where job_state.job_id = job.id and job_state.reason_code = 'reference_expired' offset 0
            ) as so
        ) as expired
        where job.status + 0 in (1 /* waiting */, 5 /* blocked */)
           or job.status + 0 = 13 /* cancelled */ and pgbroker.comes_back_1(job.id)
    ),
    moved as (
        update pgbroker.job
        set status = judged.target,
            ready_at = case
                when judged.target = 2 /* ready */ then statement_timestamp() + judged.place * interval '1 microsecond'
            end,
            available_at = case when judged.target = 2 /* ready */ then null else job.available_at end,
            finished_at = case when judged.target >= 10 then statement_timestamp() end
        from judged
        where job.id = any (array[judged.id])
          and judged.target <> judged.status
        returning job.id, job.tenant_id, job.status, job.queue_id, judged.status as former, judged.prerequisite_id, judged.outcome, judged.root_id
    ),
    -- Those that stay, too: for another reason, it may be.
    stopped as (
        select moved.id, moved.tenant_id, moved.prerequisite_id, moved.root_id
        from moved
        where moved.status in (5 /* blocked */, 13 /* cancelled */)
        union all
        select judged.id, judged.tenant_id, judged.prerequisite_id, judged.root_id
        from judged
        where judged.target = judged.status
          and judged.target in (5 /* blocked */, 13 /* cancelled */)
          and not judged.is_expired
    ),
    why as materialized (
        select bad.root_id, said.reason, said.cause_id
        from (select distinct stopped.root_id from stopped) as bad
        cross join lateral pgbroker.why_failed_1(bad.root_id) as said
    ),
    explained as (
        insert into pgbroker.job_state (job_id, tenant_id, reason_code, reason, cause_id)
        select
            stopped.id,
            stopped.tenant_id,
            'prerequisite_failed',
            case
                when stopped.prerequisite_id = stopped.root_id then why.reason
                else format('its prerequisite %s was cancelled because of job %s', stopped.prerequisite_id, why.cause_id)
            end,
            why.cause_id
        from stopped
        join why on why.root_id = stopped.root_id
        order by stopped.id
        on conflict (job_id) do update
        set reason_code = excluded.reason_code,
            reason = excluded.reason,
            by = '',
            cause_id = excluded.cause_id,
            changed_at = statement_timestamp()
        where job_state.reason_code <> excluded.reason_code
           or job_state.cause_id is distinct from excluded.cause_id
           or job_state.reason <> excluded.reason
    ),
    forgotten as (
        delete from pgbroker.job_state
        using moved
        where job_state.job_id = any (array[moved.id])
          and moved.former in (5 /* blocked */, 13 /* cancelled */)
          and moved.status in (0 /* scheduled */, 1 /* waiting */, 2 /* ready */)
    )
    select
        array_agg(distinct queue_id) filter (where status in (0 /* scheduled */, 2 /* ready */)),
        array_agg(id) filter (where former = 13 /* cancelled */)
    into freed, returned
    from moved;

    if returned is not null then
        perform pgbroker.take_keys_back_1(returned);
    end if;
    if freed is not null then
        perform pg_notify('pgbroker', queue.name)
        from pgbroker.queue
        where queue.id = any (freed);
    end if;
end
$function$;

-- Tell whether a job or a group is there, and not over.
create function pgbroker.is_alive_1(id uuid) returns boolean
language plpgsql stable as $function$
begin
    return exists (select from pgbroker.job where job.id = is_alive_1.id and job.status + 0 < 10)
        or exists (select from pgbroker.run_group where run_group.id = is_alive_1.id and run_group.state + 0 < 10);
end
$function$;

-- Tell whether a job still has to wait: for an edge, or for what is still to come.
create function pgbroker.is_held_1(job uuid) returns boolean
language plpgsql stable as $function$
begin
    return exists (select from pgbroker.open_edges_of_1(job))
        or exists (select from pgbroker.deferred_reference as deferred where deferred.dependent_id = job);
end
$function$;

-- Those of these jobs that have an idempotency key. Looked up first, in a query of their own: from keys to jobs there is
-- no way but by the tenant, which would read all of its jobs.
create function pgbroker.keyed_jobs_1(jobs uuid[])
returns table (id uuid, status smallint, tenant_id text, job_type_id int, idempotency_key text)
language sql stable as $function$
    select job.id, job.status, job.tenant_id::text, job.job_type_id, payload.idempotency_key
    from pgbroker.job
    join pgbroker.job_payload as payload on payload.job_id = any (array[job.id])
    where job.id = any (jobs)
      and payload.idempotency_key is not null
    offset 0
$function$;

-- Tell whether a cancelled job was cancelled because of a prerequisite, so that it comes back with it. One whose
-- idempotency key a newer job holds does not: that one took its place.
create function pgbroker.comes_back_1(cancelled uuid) returns boolean
language plpgsql stable as $function$
begin
    return exists (
        select from pgbroker.job_state where job_state.job_id = cancelled and job_state.reason_code = 'prerequisite_failed'
    )
    and not exists (
        select
        from pgbroker.keyed_jobs_1(array[cancelled]) as job
        join pgbroker.idempotency as held
            on held.tenant_id = job.tenant_id
            and held.job_type_id = job.job_type_id
            and held.key = job.idempotency_key
            and held.job_id <> job.id
        where pgbroker.holds_key_1(
              held.scope, held.expires_at, (select holder.status from pgbroker.job as holder where holder.id = held.job_id)
          )
    );
end
$function$;

-- Lock the idempotency keys of those jobs that may come back, and say whose key somebody else has just got hold of: a
-- caller who takes it over in a transaction that may be open for long. Only its end tells whether the job comes back.
create function pgbroker.keys_in_use_1(jobs uuid[]) returns uuid[]
language plpgsql volatile as $function$
declare
    had uuid[];
begin
    if not exists (select from pgbroker.job where job.id = any (jobs) and job.status + 0 = 13 /* cancelled */) then
        return '{}';
    end if;
    had := array(
        select job.id
        from pgbroker.keyed_jobs_1(jobs) as job
        join pgbroker.idempotency as held
            on held.tenant_id = job.tenant_id
            and held.job_type_id = job.job_type_id
            and held.key = job.idempotency_key
        where job.status = 13 /* cancelled */
        order by held.tenant_id, held.job_type_id, held.key
        for update of held skip locked
    );
    return array(
        select job.id
        from pgbroker.keyed_jobs_1(jobs) as job
        join pgbroker.idempotency as held
            on held.tenant_id = job.tenant_id
            and held.job_type_id = job.job_type_id
            and held.key = job.idempotency_key
        where job.status = 13 /* cancelled */
          and job.id <> all (had)
    );
end
$function$;

-- Give jobs that are alive again the idempotency keys that newer jobs took and have let go of.
create function pgbroker.take_keys_back_1(revived uuid[]) returns void
language sql volatile as $function$
    update pgbroker.idempotency as held
    set job_id = job.id,
        digest = sha256(
            convert_to(
                jsonb_build_array(payload.args, job.priority, job.declared_attempts, payload.options -> 'backoff')::text,
                'UTF8'
            )
        ),
        scope = coalesce(payload.idempotency_scope, 'held'),
        expires_at = job.created_at + payload.window_seconds * interval '1 second'
    from pgbroker.keyed_jobs_1(revived) as keyed
    join pgbroker.job on job.id = any (array[keyed.id])
    join pgbroker.job_payload as payload on payload.job_id = any (array[keyed.id])
    where held.tenant_id = keyed.tenant_id
      and held.job_type_id = keyed.job_type_id
      and held.key = keyed.idempotency_key
      and held.job_id <> keyed.id
$function$;

-- Say in words how a prerequisite ended badly, and which job was the first to go wrong. Of a group: its member that
-- failed first.
create function pgbroker.why_failed_1(prerequisite uuid)
returns table (reason text, cause_id uuid)
language plpgsql stable as $function$
declare
    in_group text;
    culprit uuid := prerequisite;
    ended smallint;
begin
    select run_group.name, run_group.state into in_group, ended from pgbroker.run_group where run_group.id = prerequisite;
    if in_group is not null then
        select member.id into culprit
        from pgbroker.bad_members_1(prerequisite) as member
        order by member.status = 13 /* cancelled */, member.finished_at, member.id
        limit 1;
    else
        select job.status into ended from pgbroker.job where job.id = prerequisite;
    end if;
    select coalesce(state.cause_id, culprit) into cause_id
    from (select) as one
    left join pgbroker.job_state as state on state.job_id = culprit and state.reason_code = 'prerequisite_failed';
    reason := format(
        'its prerequisite%s %s%s',
        case when in_group is not null then format(', run group %s,', in_group) else ' ' || prerequisite end,
        case ended
            when 11 /* failed */ then 'failed'
            when 12 /* dead_letter */ then 'is a dead letter'
            when 13 /* cancelled */ then 'was cancelled'
            else 'is gone'
        end,
        case when cause_id is distinct from prerequisite and cause_id is not null then format(' because of job %s', cause_id) end
    );
    return next;
end
$function$;

-- End the groups among these ids that are sealed, wait for nothing and have no live member; enqueue their callbacks.
-- Returns those that ended. One that somebody holds is noted for a pass.
create function pgbroker.finish_groups_1(ids uuid[], later interval) returns uuid[]
language plpgsql volatile as $function$
declare
    locked uuid[];
    open uuid[];
    finished record;
    ended uuid[] := '{}';
begin
    if not exists (
        select from pgbroker.run_group where run_group.id = any (ids) and run_group.state in (0 /* open */, 1 /* sealed */)
    ) then
        return ended;
    end if;
    locked := array(
        select run_group.id
        from pgbroker.run_group
        where run_group.id = any (ids)
          and run_group.state = 1 /* sealed */
        order by run_group.id
        for no key update skip locked
    );
    -- Who seals an open one waits until this commits, and then sees who has ended. Where somebody is just sealing it, he
    -- may have counted already.
    open := array(
        select run_group.id
        from pgbroker.run_group
        where run_group.id = any (ids)
          and run_group.state = 0 /* open */
        order by run_group.id
        for key share skip locked
    );
    insert into pgbroker.unresolved (prerequisite_id, tenant_id, not_before)
    select run_group.id, run_group.tenant_id, statement_timestamp() + later
    from pgbroker.run_group
    where run_group.id = any (ids)
      and run_group.state in (0 /* open */, 1 /* sealed */)
      and run_group.id <> all (locked || open);
    if found then
        perform pg_notify('pgbroker', '*resolve');
    end if;
    if locked = '{}' then
        return ended;
    end if;

    -- In a later statement than the lock: two last members may end together.
    for finished in
        with counted as materialized (
            select
                over.id,
                exists (
                    select
                    from pgbroker.open_edges_of_1(over.id) as edge
                    where edge.outcome > 0
                      and edge.on_failure = 0 /* cancel */
                ) as barred,
                (select count(*) from pgbroker.job where job.run_group_id = over.id) as members,
                (select count(*) from pgbroker.bad_members_1(over.id)) as bad
            from unnest(locked) as over (id)
            where not exists (select from pgbroker.live_members_1(over.id) offset 0)
            -- What the group waits for, each member has waited for; one without members waits itself, unless it is to end.
            and (
                exists (select from pgbroker.job where job.run_group_id = over.id offset 0)
                or exists (
                    select from pgbroker.run_group as held where held.id = over.id and held.cancel_requested_at is not null
                )
                or not exists (
                    select
                    from pgbroker.open_edges_of_1(over.id) as edge
                    where edge.outcome = 0 or edge.on_failure = 1 /* block */
                    offset 0
                )
            )
        )
        update pgbroker.run_group
        set state = case
                when run_group.cancel_requested_at is not null then 13 /* cancelled */
                when counted.barred then 11 /* failed */
                when counted.bad <= coalesce(
                    run_group.tolerate_count,
                    -- As it was written: in binary 18.4 % of 375 are less than 69.
                    floor(counted.members * run_group.tolerate_percent::numeric / 100)::int,
                    0
                ) then 10 /* completed */
                else 11 /* failed */
            end,
            finished_at = statement_timestamp()
        from counted
        where run_group.id = any (array[counted.id])
          and run_group.state = 1 /* sealed */
        returning run_group.*
    loop
        if finished.state = 10 /* completed */ and finished.on_completed is not null and finished.completed_job_id is null then
            perform pgbroker.call_back_1(finished.id, finished.tenant_id, finished.on_completed, 'completed');
        elsif finished.state = 11 /* failed */ and finished.on_failed is not null and finished.failed_job_id is null then
            perform pgbroker.call_back_1(finished.id, finished.tenant_id, finished.on_failed, 'failed');
        end if;
        ended := ended || finished.id;
    end loop;
    return ended;
end
$function$;

-- Enqueue a group's callback in the group's tenant and remember its job: there is one at most in the life of a group.
-- What goes wrong must not keep the last member from being settled: it is undone, and noted in callback_error.
create function pgbroker.call_back_1(group_id uuid, tenant text, entry jsonb, ending text) returns void
language plpgsql volatile as $function$
declare
    tenant_before constant text := coalesce(current_setting('pgbroker.tenant_id', true), '');
    answer record;
begin
    perform set_config('pgbroker.tenant_id', tenant, true);
    begin
        select * into strict answer from pgbroker.enqueue_many_1(jsonb_build_array(entry));
        if answer.outcome not in ('created', 'replaced', 'existing') then
            raise exception '%: %', answer.outcome, answer.detail using errcode = 'PB001', hint = answer.outcome;
        end if;
        update pgbroker.run_group
        set completed_job_id = case when ending = 'completed' then answer.job_id else completed_job_id end,
            failed_job_id = case when ending = 'failed' then answer.job_id else failed_job_id end,
            callback_error = null
        where id = group_id;
        perform pg_notify('pgbroker', woken.name)
        from pgbroker.queue as woken
        where woken.id in (select job.queue_id from pgbroker.job where job.id = answer.job_id);
    exception when others then
        -- A deadlock or a failed serialisation is for the caller to repeat, with all that it did.
        if sqlstate like '40%' then
            raise;
        end if;
        update pgbroker.run_group
        set callback_error = left(format('on_%s: %s', ending, sqlerrm), 1000)
        where id = group_id;
    end;
    perform set_config('pgbroker.tenant_id', tenant_before, true);
end
$function$;

-- Look at what was left to a pass, level after level, until so many edges have been looked at; returns how many were,
-- and whether something is left, for now or for a moment later.
-- Two passes at once share the rows: each takes those that the other has not locked. *skip* leaves the first ones
-- alone: a pass with them has failed.
-- Plans that stay: planned anew for each level, a cascade would do little else. By indexes alone, whatever the statistics.
create function pgbroker.resolve_pass_1(most int, skip int, out looked_at int, out is_left boolean)
language plpgsql volatile
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_bitmapscan = off
    set jit = off
as $function$
declare
    taken uuid[];
begin
    perform set_config('pgbroker.resolving', 'on', true);
    looked_at := 0;
    while looked_at < most loop
        with gone as (
            delete from pgbroker.unresolved
            where id = any (array(
                select id
                from pgbroker.unresolved
                where not_before <= statement_timestamp()
                order by id
                offset skip
                limit least(200, most)
                for update skip locked
            ))
            returning prerequisite_id
        )
        select array_agg(distinct prerequisite_id) into taken from gone;
        exit when taken is null;
        looked_at := looked_at + 1 + pgbroker.resolve_1(taken, most - looked_at, interval '200 milliseconds', null, false);
    end loop;
    perform set_config('pgbroker.resolving', '', true);
    is_left := exists (select from pgbroker.unresolved);
end
$function$;
