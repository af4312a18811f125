-- Record what happens to jobs, whoever makes it happen.
--
-- pgbroker.events is 'terminal' (default), 'all' or 'off': PGBROKER["EVENTS"], set with every statement.

-- An end is an end: after it a job changes only by a retry, so the new rows alone tell. No join of old with new.
--
-- Dead letters may have an on_exhausted, and any end may be waited for. Where nothing ended, which is most updates,
-- nobody looks for that.
create function pgbroker.job_after_update_1() returns trigger
language plpgsql as $function$
declare
    awaited uuid[];
begin
    if coalesce(nullif(current_setting('pgbroker.events', true), ''), 'terminal') <> 'off' then
        insert into pgbroker.job_event (job_id, tenant_id, event)
        select id, tenant_id, status
        from changed
        where status >= 10;
        if not found then
            return null;
        end if;
    end if;
    if exists (select from changed where status = 12 /* dead_letter */) then
        perform pgbroker.enqueue_exhausted_1(array(select id from changed where status = 12 /* dead_letter */));
    end if;
    awaited := array(
        select id
        from changed
        where status >= 10
          and exists (
              select
              from pgbroker.open_edges_to_1(changed.id) as edge
              where edge.outcome <> changed.status
              -- Keeps it a look-up for each: as a join it may read all the edges there are, time and again.
              offset 0
          )
        union all
        select distinct run_group_id
        from changed
        where status >= 10
          and run_group_id is not null
    );
    if awaited <> '{}' then
        perform pgbroker.resolve_ended_1(awaited);
    end if;
    return null;
end
$function$;

-- Mode 'all' needs the old rows too. The join must be a hash join: worker statements switch those off, and a
-- nested loop over two transition tables is quadratic. Nor may it be planned for the first batch, of one, for ever.
create function pgbroker.job_after_update_all_1() returns trigger
language plpgsql set enable_hashjoin = on set plan_cache_mode = force_custom_plan as $function$
begin
    insert into pgbroker.job_event (job_id, tenant_id, event, metadata)
    select
        changed.id,
        changed.tenant_id,
        case when changed.status = former.status then 20 /* cancel requested */ else changed.status end,
        jsonb_build_object('attempt_no', changed.attempt_count, 'lease_token', changed.lease_token)
    from changed
    join former on former.id = changed.id
    where (changed.status <> former.status and changed.status < 10)
       or (changed.cancel_requested_at is not null and former.cancel_requested_at is null and changed.status < 10);
    return null;
end
$function$;

create function pgbroker.job_after_insert_all_1() returns trigger
language plpgsql as $function$
begin
    insert into pgbroker.job_event (job_id, tenant_id, event)
    select id, tenant_id, status
    from created;
    return null;
end
$function$;

create trigger job_after_update
    after update on pgbroker.job
    referencing new table as changed
    for each statement
    execute function pgbroker.job_after_update_1();

create trigger job_after_update_all
    after update on pgbroker.job
    referencing old table as former new table as changed
    for each statement
    when (current_setting('pgbroker.events', true) = 'all')
    execute function pgbroker.job_after_update_all_1();

create trigger job_after_insert_all
    after insert on pgbroker.job
    referencing new table as created
    for each statement
    when (current_setting('pgbroker.events', true) = 'all')
    execute function pgbroker.job_after_insert_all_1();
