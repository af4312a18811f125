-- What keeps a job waiting, what comes back with a prerequisite, and what is said of one that ended badly.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

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
language plpgsql stable
    -- Asked of each job of many: planned anew, that costs ten times as much as it does.
    set plan_cache_mode = force_generic_plan
as $function$
begin
    return exists (select from pgbroker.open_edges_of_1(job))
        or exists (select from pgbroker.deferred_reference as deferred where deferred.dependent_id = job);
end
$function$;

-- Name what a job waits for by name.
create function pgbroker.reference_words_1(group_name text, job_name text) returns text
language sql immutable as $function$
    select case
        when job_name is null then format('run group %s', group_name)
        else format('job %s of run group %s', job_name, group_name)
    end
$function$;

-- What a job waited for by name that had not come in time: in words, the id of what is there of that name by now, and how
-- that ended; null and null where there is still nothing.
create function pgbroker.expired_references_1(dependent uuid) returns table (words text, named_id uuid, outcome smallint)
language plpgsql stable rows 1
    set enable_seqscan = off
as $function$
begin
    return query
        select
            pgbroker.reference_words_1(expired.group_name, expired.job_name),
            target.id,
            (select prerequisite.outcome from pgbroker.prerequisites_1(array[target.id]) as prerequisite)
        from (
            select each.tenant_id, each.group_name, each.job_name
            from pgbroker.deferred_reference as each
            where each.dependent_id = dependent
              and each.expired_at is not null
            offset 0
        ) as expired
        left join lateral pgbroker.named_1(expired.tenant_id, expired.group_name, expired.job_name) as named on true
        cross join lateral (
            select case when expired.job_name is null then named.group_id else named.job_id end as id
        ) as target;
end
$function$;

-- Tell whether a job would wait for itself if it waited for this, as those find who add an edge; null where this is null.
create function pgbroker.closes_cycle_1(dependent uuid, named uuid) returns boolean
language plpgsql stable strict
    set enable_seqscan = off
as $function$
declare
    nodes constant uuid[] := array_remove(
        array[dependent, (select job.run_group_id from pgbroker.job where job.id = dependent)], null
    );
begin
    perform pgbroker.refuse_cycle_1(nodes, array[named]);
    return named = any (nodes);
exception when sqlstate 'PB001' then
    return true;
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
