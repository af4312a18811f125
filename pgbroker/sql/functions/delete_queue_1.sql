-- Delete a queue that nothing refers to.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Say what refers to a queue, null when nothing does: is_default, is_declared (by a job type), has_jobs, has_history
-- (counters of what ran there), or is_scheduled: and the name of a schedule that enqueues there. Needs the scope of all
-- tenants: the jobs and schedules of others must be seen.
create function pgbroker.queue_reference_1(queue_name text) returns text
language sql stable as $function$
    select case
        when queue.name = 'default' then 'is_default'
        when exists (select from pgbroker.job_type where job_type.defaults ->> 'queue' = queue.name) then 'is_declared'
        when exists (select from pgbroker.job where job.queue_id = queue.id) then 'has_jobs'
        when exists (select from pgbroker.job_counter as counter where counter.queue_id = queue.id) then 'has_history'
        else (
            select 'is_scheduled:' || min(schedule.name)
            from pgbroker.schedule
            where schedule.template @> jsonb_build_object('jobs', jsonb_build_array(jsonb_build_object('queue', queue.name)))
                or schedule.template @> jsonb_build_object('group', jsonb_build_object('on_completed', jsonb_build_object('queue', queue.name)))
                or schedule.template @> jsonb_build_object('group', jsonb_build_object('on_failed', jsonb_build_object('queue', queue.name)))
        )
    end
    from pgbroker.queue
    where queue.name = queue_name
$function$;

-- Tell the guard whether delete_queue_1 is at work on this queue.
create function pgbroker.deletes_queue_1(number smallint) returns boolean
language sql stable as $function$
    select coalesce(current_setting('pgbroker.deleting_queue', true) = number::text, false)
$function$;

-- Delete a queue with its priorities, pauses and samples; returns deleted, unknown_queue, or what refers to it.
--
-- No row of a job locks its queue. But whoever has looked a queue up keeps its lock on the table until the
-- transaction ends, so this waits for all of them and shuts others out: what is looked for then is everything
-- there is. It waits a second at most, since enqueues queue up behind it; then lock_not_available is raised.
create function pgbroker.delete_queue_1(queue_name text) returns text
language plpgsql volatile as $function$
declare
    patience_before constant text := current_setting('lock_timeout');
    number smallint;
    reference text;
begin
    if current_setting('pgbroker.scope', true) is distinct from 'all' then
        raise exception 'a queue is deleted in the scope of all tenants, since it is theirs too'
            using errcode = 'PB001', hint = 'invalid_tenant';
    end if;
    perform set_config('lock_timeout', '1s', true);
    lock table pgbroker.queue in access exclusive mode;
    perform set_config('lock_timeout', patience_before, true);
    select queue.id into number from pgbroker.queue where queue.name = queue_name;
    if number is null then
        return 'unknown_queue';
    end if;
    reference := pgbroker.queue_reference_1(queue_name);
    if reference is not null then
        return reference;
    end if;
    -- What the guards ask for.
    perform set_config('pgbroker.deleting_queue', number::text, true);
    delete from pgbroker.queue where queue.id = number;
    delete from pgbroker.queue_priority as known where known.queue_id = number;
    delete from pgbroker.pause where pause.queue_id = number;
    delete from pgbroker.queue_sample as sample where sample.queue_id = number;
    perform set_config('pgbroker.deleting_queue', '', true);
    return 'deleted';
end
$function$;
