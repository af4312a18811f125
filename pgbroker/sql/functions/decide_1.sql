-- Where jobs belong by what their edges say, and who falls with them.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

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

-- Lock jobs and groups, each in the order of their ids, but those that somebody holds. Returns the locked ones.
create function pgbroker.lock_free_1(ids uuid[]) returns uuid[]
language plpgsql volatile as $function$
begin
    return array(
        select job.id from pgbroker.job where job.id = any (ids) order by job.id for no key update skip locked
    ) || array(
        select run_group.id
        from pgbroker.run_group
        where run_group.id = any (ids)
        order by run_group.id
        for no key update skip locked
    );
end
$function$;

-- Lock those of them that nobody holds, and of which no other's end has to tell whether they come back. Returns them, jobs
-- first, each in the order of their ids.
create function pgbroker.lock_dependents_1(ids uuid[]) returns uuid[]
language plpgsql volatile as $function$
declare
    locked uuid[];
    groups constant uuid[] := array(
        select run_group.id
        from pgbroker.run_group
        where run_group.id = any (ids)
        order by run_group.id
        for no key update skip locked
    );
    are_cancelled boolean;
begin
    select array_agg(job.id), bool_or(job.status = 13 /* cancelled */)
    into locked, are_cancelled
    from (
        select job.id, job.status from pgbroker.job where job.id = any (ids) order by job.id for no key update skip locked
    ) as job;
    if are_cancelled then
        locked := array(select id from unnest(locked) as id except select * from unnest(pgbroker.keys_in_use_1(locked)) as id);
    end if;
    return coalesce(locked, '{}') || groups;
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
            job.ctid as row_place,
            job.status,
            job.tenant_id,
            given.place,
            case
                when bad.on_failure = 0 /* cancel */ then 13 /* cancelled */
                when bad.on_failure = 1 /* block */ or expired.so then 5 /* blocked */
                when open.are or exists (
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
        cross join lateral (select exists (select from pgbroker.open_edges_of_1(job.id) offset 0) as are offset 0) as open
        left join lateral (
            select ended.on_failure, ended.prerequisite_id, ended.outcome
            from (
                select edge.on_failure, edge.prerequisite_id, edge.outcome
                from pgbroker.bad_edges_of_1(job.id) as edge
                where open.are
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
        -- Locked, its row stays where it is.
        where job.ctid = judged.row_place
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
        -- One that a reference has stopped does not come back with a prerequisite.
        where job_state.reason_code <> 'reference_expired'
          and (
              job_state.reason_code <> excluded.reason_code
              or job_state.cause_id is distinct from excluded.cause_id
              or job_state.reason <> excluded.reason
          )
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
