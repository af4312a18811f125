-- How a run group ends, and what is enqueued then.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

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
                    from pgbroker.bad_edges_of_1(over.id) as edge
                    where edge.on_failure = 0 /* cancel */
                      -- Where it has come back, its members are about to; without any there is nothing that could.
                      and (
                          exists (select from pgbroker.job where job.run_group_id = over.id offset 0)
                          or not pgbroker.is_alive_1(edge.prerequisite_id)
                      )
                ) as barred,
                exists (
                    select
                    from pgbroker.open_edges_of_1(over.id) as edge
                    where edge.outcome = 0
                       -- Its members were blocked, and somebody let them run.
                       or edge.on_failure = 1 /* block */
                       and not exists (select from pgbroker.job where job.run_group_id = over.id offset 0)
                    offset 0
                ) as waits,
                (select count(*) from pgbroker.job where job.run_group_id = over.id) as members,
                (select count(*) from pgbroker.bad_members_1(over.id)) as bad
            from unnest(locked) as over (id)
            where not exists (select from pgbroker.live_members_1(over.id) offset 0)
        ),
        judged as materialized (
            select
                counted.id,
                counted.barred,
                counted.waits,
                counted.bad > coalesce(
                    held.tolerate_count,
                    -- As it was written: in binary 18.4 % of 375 are less than 69.
                    floor(counted.members * held.tolerate_percent::numeric / 100)::int,
                    0
                ) as spoilt
            from counted
            join pgbroker.run_group as held on held.id = any (array[counted.id])
        )
        update pgbroker.run_group
        set state = case
                when run_group.cancel_requested_at is not null then 13 /* cancelled */
                when judged.barred or judged.spoilt then 11 /* failed */
                else 10 /* completed */
            end,
            finished_at = statement_timestamp()
        from judged
        where run_group.id = any (array[judged.id])
          and run_group.state = 1 /* sealed */
          -- Its members may all be over before what it waits for is, cancelled by edges of their own: it fails at once
          -- where that is settled, and completes only with what it waits for.
          and (run_group.cancel_requested_at is not null or judged.barred or judged.spoilt or not judged.waits)
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
        if pgbroker.is_passing_1(sqlstate) then
            raise;
        end if;
        update pgbroker.run_group
        set callback_error = left(format('on_%s: %s', ending, sqlerrm), 1000)
        where id = group_id;
    end;
    perform set_config('pgbroker.tenant_id', tenant_before, true);
end
$function$;
