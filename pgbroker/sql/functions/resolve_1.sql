-- What the end of a job or a group means for those that wait for it.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.
--
-- Everything here follows from what is true when it looks, not from what has just happened: an end, a revival, a late
-- edge and a repair are the same work, and doing it twice changes nothing. Nobody is waited for: what somebody holds is
-- left to a pass, since whoever ends a job may be settling five hundred at once.
--
-- An edge that is satisfied is so whoever holds its dependent, which is left to a pass by its own id. One that ended
-- badly, or comes back, changes only with its dependent: the prerequisite is left.

-- Resolve the dependents of jobs and groups, at most so many; returns how many edges were looked at. What is left over
-- is noted in pgbroker.unresolved, to be looked at again not before *later*. Of a pass the prerequisites may also be
-- dependents that were left.
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
    places tid[];
    are_met boolean;
    met int;
    waiting uuid[];
    falls bigint[];
    lower uuid[];
    above uuid[];
    roots uuid[];
    locked uuid[];
    noted bigint := 0;
    more bigint;
    left_over bigint := 0;
    is_short boolean := false;
    is_more boolean;
begin
    perform set_config('pgbroker.resolving', 'on', true);
    if not held then
        mine := array(
            select job.id from pgbroker.job where job.id = any (prerequisites) order by job.id for share skip locked
        ) || array(
            select run_group.id from pgbroker.run_group where run_group.id = any (prerequisites) order by run_group.id for share skip locked
        );
        waiting := array(
            select job.id from pgbroker.job where job.id = any (mine) and job.status + 0 in (1 /* waiting */, 5 /* blocked */)
        );
        if waiting <> '{}' then
            locked := array(
                select job.id from pgbroker.job where job.id = any (waiting) order by job.id for no key update skip locked
            );
            perform pgbroker.decide_1(locked, null, null);
            mine := array(select id from unnest(mine) as id where id = any (locked) or id <> all (waiting));
        end if;
    end if;
    perform pgbroker.finish_groups_1(mine, later);

    -- An edge that says of its prerequisite what is no longer so.
    select
        array_agg(stale.id),
        array_agg(stale.dependent_id),
        array_agg(stale.prerequisite_id),
        array_agg(stale.outcome),
        array_agg(stale.on_failure),
        array_agg(stale.place),
        bool_and(stale.former = 0 and (stale.outcome = 10 /* completed */ or stale.on_failure = 2 /* ignore */))
    into edges, dependents, ended, outcomes, policies, places, are_met
    from (
        select edge.id, edge.dependent_id, edge.prerequisite_id, prerequisite.outcome, edge.on_failure, edge.former, edge.place
        from pgbroker.prerequisites_1(mine) as prerequisite
        cross join lateral (
            select waiting.id, waiting.dependent_id, waiting.prerequisite_id, waiting.on_failure, waiting.outcome as former,
                waiting.place
            from pgbroker.open_edges_to_1(prerequisite.id) as waiting
            where waiting.outcome <> prerequisite.outcome
              and (chosen is null or (waiting.dependent_id in (select unnest(chosen))) is true)
            limit most + 1
        ) as edge
        limit most + 1
    ) as stale;
    is_more := cardinality(edges) > most;
    if is_more then
        edges := edges[:most];
        dependents := dependents[:most];
        ended := ended[:most];
        outcomes := outcomes[:most];
        policies := policies[:most];
        places := places[:most];
    end if;

    if are_met then
        -- By their places: half of what an edge costs is to be found in an index once more.
        with free as materialized (
            select edge.ctid as place, stale.outcome
            from unnest(places, outcomes) as stale (place, outcome)
            join pgbroker.job_dependency as edge on edge.ctid = stale.place
            where (edge.satisfied_at is null) is true
            for no key update of edge skip locked
        ),
        satisfied as (
            update pgbroker.job_dependency as edge
            set outcome = free.outcome,
                satisfied_at = statement_timestamp()
            from free
            where edge.ctid = free.place
            returning edge.dependent_id
        )
        select count(*), array_agg(distinct satisfied.dependent_id) into met, waiting from satisfied;
        is_short := met < cardinality(places);
        -- After their edges: two prerequisites that end together do not see each other's, and the one who does not get
        -- the lock leaves the dependent to a pass, which sees both.
        locked := pgbroker.lock_dependents_1(waiting);
        if cardinality(locked) < cardinality(waiting) then
            insert into pgbroker.unresolved (prerequisite_id, tenant_id, not_before)
            select dependent.id, dependent.tenant_id, statement_timestamp() + later
            from pgbroker.prerequisites_1(waiting) as dependent
            where (dependent.id in (select unnest(locked))) is not true;
            get diagnostics noted = row_count;
        end if;
        perform pgbroker.decide_1(locked, null, null);
    elsif dependents is not null then
        -- What falls with them, level after level: one statement for all of it, not one for each.
        select array_agg(falling.id), array_agg(falling.dependent_id), array_agg(falling.prerequisite_id), array_agg(falling.root_id)
        into falls, lower, above, roots
        from pgbroker.falling_1(dependents, ended, outcomes, policies, most - cardinality(dependents)) as falling;
        -- The dependents first, their edges in a later statement: this one's snapshot may miss what another has just
        -- committed, and two prerequisites that end together must not each see the other as unfinished.
        locked := pgbroker.lock_dependents_1(dependents || lower);
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
    end if;

    if dependents is not null then
        -- A group that failed for what it waited for, which lives again: it has no member to bring it back, perhaps.
        with reopened as (
            update pgbroker.run_group
            set state = 1 /* sealed */,
                finished_at = null
            where run_group.id = any (locked)
              and run_group.state = 11 /* failed */
              and not exists (
                  select
                  from pgbroker.bad_edges_of_1(run_group.id) as edge
                  where edge.on_failure = 0 /* cancel */
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

    if cardinality(mine) < cardinality(prerequisites) or is_more or is_short then
        insert into pgbroker.unresolved (prerequisite_id, tenant_id, not_before)
        select
            prerequisite.id,
            prerequisite.tenant_id,
            -- What is only too much for one time goes on at once; what somebody holds, later.
            statement_timestamp() + case when is_more then interval '0' else later end
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

-- Leave jobs and groups to a pass, as prerequisites and as dependents. At REPEATABLE READ and above every end is left so:
-- what others have committed since the transaction began is not seen in it, in whatever statement, and two prerequisites
-- that end together would each see the other as unfinished. A pass sees both.
create function pgbroker.leave_to_pass_1(ids uuid[]) returns void
language plpgsql volatile as $function$
begin
    insert into pgbroker.unresolved (prerequisite_id, tenant_id)
    select left_over.id, left_over.tenant_id
    from pgbroker.prerequisites_1(ids) as left_over;
    perform pg_notify('pgbroker', '*resolve');
end
$function$;

-- Say of each of these ids, jobs or groups, whose it is and how it ended; outcome 0 while it lives.
create function pgbroker.prerequisites_1(ids uuid[])
returns table (id uuid, tenant_id text, outcome smallint)
language sql stable rows 10 as $function$
    select job.id, job.tenant_id::text, case when job.status >= 10 then job.status else 0::smallint end
    from pgbroker.job
    where job.id = any (ids)
    union all
    select run_group.id, run_group.tenant_id::text, case when run_group.state >= 10 then run_group.state else 0::smallint end
    from pgbroker.run_group
    where run_group.id = any (ids)
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
