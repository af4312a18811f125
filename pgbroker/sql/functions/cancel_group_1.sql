-- What people do about members: set blocked ones free, cancel them with their group.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Set blocked jobs free of what blocks them: their edges to prerequisites that ended badly count as satisfied, and keep
-- how those ended. Returns the jobs that exist and what became of each: unblocked (its new status), or unchanged.
create function pgbroker.unblock_1(job_ids uuid[])
returns table (job_id uuid, outcome text, status smallint)
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    blocked uuid[];
begin
    blocked := array(
        select job.id
        from pgbroker.job
        where job.id = any (job_ids)
          and job.status + 0 = 5 /* blocked */
        order by job.id
        for no key update
    );
    -- One that has come back since is waited for.
    update pgbroker.job_dependency as edge
    set satisfied_at = statement_timestamp()
    from unnest(blocked) as stopped (id)
    cross join lateral pgbroker.bad_edges_of_1(stopped.id) as bad
    where edge.id = any (array[bad.id])
      and (edge.satisfied_at is null) is true
      and not pgbroker.is_alive_1(bad.prerequisite_id);
    delete from pgbroker.job_state
    where job_state.job_id = any (blocked)
      and job_state.reason_code = 'reference_expired';
    delete from pgbroker.deferred_reference as expired
    using unnest(blocked) as stopped (id)
    where expired.dependent_id = any (array[stopped.id])
      and expired.expired_at is not null;
    perform pgbroker.decide_1(blocked, null, null);
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pgbroker.leave_to_pass_1(blocked);
    end if;
    return query
        select job.id, case when job.id = any (blocked) then 'unblocked' else 'unchanged' end, job.status
        from pgbroker.job
        where job.id = any (job_ids);
end
$function$;

-- Cancel a run group: seal it, so that nothing is added any more, and cancel its live members, so many at a time; a
-- running one gets a request. Waits for transactions that are just adding to it. Returns what was done, and whether
-- members are left; no row where there is no such group.
create function pgbroker.cancel_group_1(group_id uuid, reason text, by text, most int)
returns table (state smallint, cancelled int, requested int, is_left boolean)
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    members uuid[];
begin
    perform from pgbroker.run_group where run_group.id = group_id for update;
    if not found then
        return;
    end if;
    update pgbroker.run_group
    set state = 1 /* sealed */,
        sealed_at = coalesce(sealed_at, statement_timestamp()),
        cancel_requested_at = coalesce(cancel_requested_at, statement_timestamp())
    where run_group.id = group_id
      and run_group.state in (0 /* open */, 1 /* sealed */);
    members := array(
        select member.id
        from pgbroker.live_members_1(group_id) as member
        where member.cancel_requested_at is null
        limit most
    );
    select done.cancelled, done.requested into cancelled, requested from pgbroker.cancel_jobs_1(members, reason, by) as done;
    is_left := cardinality(members) = most;
    if members = '{}' then
        perform pgbroker.resolve_ended_1(array[group_id]);
    end if;
    state := (select run_group.state from pgbroker.run_group where run_group.id = group_id);
    return next;
end
$function$;

-- Cancel jobs as the statement cancel does: those that run are asked to end. Returns how many of either.
create function pgbroker.cancel_jobs_1(jobs uuid[], reason text, by text, out cancelled int, out requested int)
language plpgsql volatile as $function$
begin
    with wanted as materialized (
        select job.id, job.status, job.cancel_requested_at
        from pgbroker.job
        where job.id = any (jobs)
        order by job.id
        for no key update
    ),
    ended as (
        update pgbroker.job
        set status = 13 /* cancelled */,
            finished_at = statement_timestamp()
        from wanted
        where job.id = any (array[wanted.id])
          and wanted.status in (0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 4 /* suspended */, 5 /* blocked */)
        returning job.id, job.tenant_id
    ),
    asked as (
        update pgbroker.job
        set cancel_requested_at = statement_timestamp()
        from wanted
        where job.id = any (array[wanted.id])
          and wanted.status = 3 /* running */
          and wanted.cancel_requested_at is null
        returning job.id, job.tenant_id
    ),
    explained as (
        insert into pgbroker.job_state (job_id, tenant_id, reason_code, reason, by)
        select id, tenant_id, 'cancelled', cancel_jobs_1.reason, cancel_jobs_1.by
        from (select * from ended union all select * from asked) as touched
        on conflict (job_id) do update
        set reason_code = excluded.reason_code,
            reason = excluded.reason,
            by = excluded.by,
            cause_id = null,
            changed_at = statement_timestamp()
    )
    select (select count(*) from ended), (select count(*) from asked) into cancelled, requested;
end
$function$;
