-- Keep edges true, whoever ends, revives, adds or deletes.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- One level of dependents follows in the statement that ended their prerequisites, so many at most; what is deeper, or
-- more, is left to passes: a cascade by triggers alone overflows the stack at a few hundred levels.
--
-- Plans that stay: planned anew for each level, a cascade would do little else. By indexes alone, whatever the statistics.
create function pgbroker.resolve_ended_1(awaited uuid[]) returns void
language plpgsql volatile
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_bitmapscan = off
    set jit = off
as $function$
begin
    if current_setting('pgbroker.resolving', true) = 'on' or current_setting('transaction_isolation') <> 'read committed' then
        perform pgbroker.leave_to_pass_1(awaited);
    else
        perform pgbroker.resolve_1(awaited, 500, interval '0', null, true);
    end if;
end
$function$;

-- A job that has ended lives again: what was decided because of it is to be looked at, and its group is open-ended
-- again. The group at once, the dependents by a pass, in case they are many. One trigger for all of it: each has its price
-- in every claim and settle.
create function pgbroker.job_revived_1() returns trigger
language plpgsql as $function$
begin
    perform pgbroker.note_back_1(new.id, null);
    if new.run_group_id is not null then
        update pgbroker.run_group
        set state = 1 /* sealed */,
            finished_at = null,
            cancel_requested_at = null
        where id = new.run_group_id
          and state in (11 /* failed */, 13 /* cancelled */);
        if found then
            insert into pgbroker.unresolved (prerequisite_id, tenant_id) values (new.run_group_id, new.tenant_id);
            perform pg_notify('pgbroker', '*resolve');
        end if;
    end if;
    if current_setting('transaction_isolation') <> 'read committed'
        or exists (select from pgbroker.open_edges_to_1(new.id)) then
        insert into pgbroker.unresolved (prerequisite_id, tenant_id) values (new.id, new.tenant_id);
        perform pg_notify('pgbroker', '*resolve');
    end if;
    -- What it waits for itself, it was cancelled for: whether that comes back as well is to be looked at anew.
    if new.status = 1 /* waiting */ then
        with stale as (
            update pgbroker.job_dependency as edge
            set outcome = 0
            from pgbroker.bad_edges_of_1(new.id) as bad
            where edge.id = any (array[bad.id])
              and (edge.satisfied_at is null) is true
            returning edge.prerequisite_id
        )
        insert into pgbroker.unresolved (prerequisite_id, tenant_id)
        select stale.prerequisite_id, new.tenant_id
        from stale;
        if found then
            perform pg_notify('pgbroker', '*resolve');
        end if;
    end if;
    return null;
end
$function$;

create trigger job_revived
    after update of status on pgbroker.job
    for each row
    when (old.status >= 10 and new.status < 10)
    execute function pgbroker.job_revived_1();

-- With a job its edges go; those that others have to it keep how it ended.
create function pgbroker.job_deleted_1() returns trigger
language plpgsql as $function$
begin
    delete from pgbroker.job_dependency where dependent_id in (select id from gone);
    delete from pgbroker.deferred_reference where dependent_id in (select id from gone);
    return null;
end
$function$;

create trigger job_deleted
    after delete on pgbroker.job
    referencing old table as gone
    for each statement
    execute function pgbroker.job_deleted_1();

create function pgbroker.run_group_deleted_1() returns trigger
language plpgsql as $function$
begin
    delete from pgbroker.job_dependency where dependent_id in (select id from gone);
    return null;
end
$function$;

create trigger run_group_deleted
    after delete on pgbroker.run_group
    referencing old table as gone
    for each statement
    execute function pgbroker.run_group_deleted_1();

-- A prerequisite may end while the transaction that made an edge to it is still open, and then nobody has seen the
-- edge. A lock on it for so long would keep its worker from settling a whole batch; so it is looked at once more when
-- the transaction commits. What this transaction has itself made cannot have changed.
create function pgbroker.edges_made_1() returns trigger
language plpgsql as $function$
declare
    stranger record;
begin
    -- An edge of one tenant at another's job would hold that one back, or bring it down.
    select each.* into stranger
    from (select distinct made.dependent_id, made.tenant_id from made) as each
    where not exists (
        select from pgbroker.job where job.id = each.dependent_id and (job.tenant_id = each.tenant_id) is true offset 0
    )
    and not exists (
        select from pgbroker.run_group where run_group.id = each.dependent_id and (run_group.tenant_id = each.tenant_id) is true offset 0
    )
    limit 1;
    if found then
        raise exception 'pgbroker: tenant % has no job or run group % to wait for anything', stranger.tenant_id, stranger.dependent_id
            using errcode = 'PB002', hint = 'Edges are made by pgbroker.enqueue(...) and pgbroker.add_dependency(...).';
    end if;
    insert into pgbroker.edge_check (tenant_id, prerequisite_ids)
    select made.tenant_id, array_agg(distinct made.prerequisite_id)
    from made
    where made.satisfied_at is null
      and not exists (
          select
          from pgbroker.job
          where job.id = made.prerequisite_id
            -- By its statement: made under a savepoint it bears another number than its transaction.
            and (job.xmin = pg_current_xact_id()::xid or job.created_at = statement_timestamp())
          offset 0
      )
      and not exists (
          select
          from pgbroker.run_group
          where run_group.id = made.prerequisite_id
            and run_group.opened_in = pg_current_xact_id()::text::bigint
          offset 0
      )
    group by made.tenant_id;
    return null;
end
$function$;

create trigger edges_made
    after insert on pgbroker.job_dependency
    referencing new table as made
    for each statement
    execute function pgbroker.edges_made_1();

-- Deferred to the commit. All edges of the transaction at the first firing, their prerequisites in the order of their
-- ids: row by row it would deadlock with a settle. In a scope of its own, since at a commit nobody's is set.
create function pgbroker.edges_checked_1() returns trigger
language plpgsql
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_bitmapscan = off
    set jit = off
as $function$
declare
    scope_before constant text := coalesce(current_setting('pgbroker.scope', true), '');
    tenant_before constant text := coalesce(current_setting('pgbroker.tenant_id', true), '');
    prerequisites uuid[];
    stored uuid[];
begin
    perform set_config('pgbroker.scope', '', true), set_config('pgbroker.tenant_id', new.tenant_id, true);
    with taken as (
        delete from pgbroker.edge_check
        where edge_check.transaction_id = new.transaction_id
          and edge_check.tenant_id = new.tenant_id
        returning edge_check.prerequisite_ids
    )
    select array_agg(distinct id) into prerequisites from taken cross join unnest(taken.prerequisite_ids) as id;
    if prerequisites is not null then
        stored := array(
            select job.id from pgbroker.job where job.id = any (prerequisites) order by job.id for share
        ) || array(
            select run_group.id from pgbroker.run_group where run_group.id = any (prerequisites) order by run_group.id for share
        );
        if cardinality(stored) < cardinality(prerequisites) and exists (
            select
            from pgbroker.job_dependency as edge
            where edge.prerequisite_id = any (array(select id from unnest(prerequisites) as id except select id from unnest(stored) as id))
              and edge.satisfied_at is null
              and edge.outcome = 0
        ) then
            -- It ended and was purged, all while this was open: how it ended, nobody knows any more.
            raise exception 'pgbroker: what a new job waits for was deleted before it was committed'
                using errcode = 'PB001', hint = 'dependency_not_found';
        end if;
        perform pgbroker.resolve_1(prerequisites, 500, interval '0', null, true);
    end if;
    perform set_config('pgbroker.scope', scope_before, true), set_config('pgbroker.tenant_id', tenant_before, true);
    return null;
end
$function$;

create constraint trigger edges_checked
    after insert on pgbroker.edge_check
    deferrable initially deferred
    for each row
    execute function pgbroker.edges_checked_1();

-- A job in another tenant's group would keep that from ending, or make it fail. Asked once for many members of one group:
-- a look for each was a tenth of what it costs to enqueue them.
create function pgbroker.of_own_group_1() returns trigger
language plpgsql as $function$
begin
    if not exists (
        select from pgbroker.run_group where run_group.id = new.run_group_id and (run_group.tenant_id = new.tenant_id) is true
    ) then
        raise exception 'pgbroker: tenant % has no run group %', new.tenant_id, new.run_group_id
            using errcode = 'PB002', hint = 'Enqueue it into a group: group.enqueue(...).';
    end if;
    perform set_config('pgbroker.own_group', new.tenant_id || ' ' || new.run_group_id::text, true);
    return new;
end
$function$;

create trigger job_of_own_group
before insert on pgbroker.job
for each row
when (
    new.run_group_id is not null
    and current_setting('pgbroker.own_group', true) is distinct from new.tenant_id || ' ' || new.run_group_id::text
)
execute function pgbroker.of_own_group_1();

create function pgbroker.reference_of_own_job_1() returns trigger
language plpgsql as $function$
begin
    if not exists (select from pgbroker.job where job.id = new.dependent_id and (job.tenant_id = new.tenant_id) is true) then
        raise exception 'pgbroker: tenant % has no job % to wait for anything', new.tenant_id, new.dependent_id
            using errcode = 'PB002', hint = 'References are made by pgbroker.enqueue(...) and pgbroker.add_dependency(...).';
    end if;
    return new;
end
$function$;

create trigger reference_of_own_job
before insert on pgbroker.deferred_reference
for each row execute function pgbroker.reference_of_own_job_1();
