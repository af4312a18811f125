-- Who holds an idempotency key, and what somebody else who wants it hears.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Decide who holds the idempotency keys: an entry either gets its key, or learns who has it.
--
-- Keys are taken in sorted order, so two calls never wait for each other. A key that another transaction is
-- just taking is waited for: if that one rolls back it is no holder. A key whose job let go of it changes
-- hands under its row lock; the job's status is read in a later statement than the wait, because the
-- statement that waited sees what was true before. Look-ups are correlated, never joins of two arrays:
-- the planner cannot know their sizes, and a nested loop over them is quadratic.
--
-- An entry that gets its key has no outcome afterwards; where it took the place of a job, detail says so. The
-- calls of one key that ask to replace come one at a time: enqueue_turns_1 sees to it.
create function pgbroker.enqueue_hold_keys_1(entries pgbroker.enqueue_entry_1[])
returns pgbroker.enqueue_entry_1[]
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    round int := 0;
    pending bigint;
    followers bigint;
    inserted bigint;
    locked jsonb;
    replaced jsonb;
begin
    -- pending: the first entry with its key. follower: a later one of the same call.
    select
        array_agg(marked),
        count(*) filter (where (marked).outcome = 'pending'),
        count(*) filter (where (marked).outcome = 'follower')
    into entries, pending, followers
    from (
        select pgbroker.enqueue_with_outcome_1(
            entry,
            case
                when entry.outcome is not null or entry.idempotency_key is null then entry.outcome
                when row_number() over (
                    partition by entry.job_type_id, entry.idempotency_key, entry.outcome is null
                    order by entry.ordinal
                ) = 1 then 'pending'
                else 'follower'
            end,
            entry.detail
        ) as marked
        from unnest(entries) as entry
    ) as each;
    while pending > 0 loop
        round := round + 1;
        if round > 10 then
            -- Ten times in a row a holder vanished between two statements: somebody deletes keys in a loop.
            raise exception 'idempotency keys are contended' using errcode = '40001';
        end if;

        insert into pgbroker.idempotency (tenant_id, job_type_id, key, job_id, digest, scope, expires_at)
        select
            tenant,
            entry.job_type_id,
            entry.idempotency_key,
            entry.id,
            entry.digest,
            entry.idempotency_scope,
            statement_timestamp() + entry.window_seconds * interval '1 second'
        from unnest(entries) as entry
        where entry.outcome = 'pending'
        order by entry.job_type_id, entry.idempotency_key collate "C"
        on conflict (tenant_id, job_type_id, key) do nothing;
        get diagnostics inserted = row_count;
        if inserted = pending then
            -- What follows is for keys that somebody has: statements that are planned with every call.
            entries := array(
                select case
                    when entry.outcome = 'pending' then pgbroker.enqueue_with_outcome_1(entry, null, null)
                    else entry
                end
                from unnest(entries) as entry
            );
            exit;
        end if;

        replaced := null;
        -- Wait only where the holder seems to let go, or to be replaced: a plain duplicate takes no lock. What
        -- follows is about these keys alone: another's holder may change until it is locked.
        select jsonb_object_agg(taken.ordinal, null) into locked
        from (
            select entry.ordinal
            from unnest(entries) as entry
            join pgbroker.idempotency as held
                on held.tenant_id = tenant
                and held.job_type_id = entry.job_type_id
                and held.key = entry.idempotency_key
            where entry.outcome = 'pending'
              and held.job_id <> entry.id
              and (
                  not pgbroker.holds_key_1(held.scope, held.expires_at, (select job.status from pgbroker.job where job.id = held.job_id))
                  or entry.on_conflict = 'replace' and pgbroker.is_replaceable_1(held.job_id, entry.id)
              )
            order by held.job_type_id, held.key
            for update of held
        ) as taken;
        if locked is not null then
            if exists (select from unnest(entries) as entry where entry.outcome = 'pending' and entry.on_conflict = 'replace') then
                replaced := pgbroker.enqueue_replace_1(entries, locked, round <= 5);
            end if;
            update pgbroker.idempotency as held
            set job_id = entry.id,
                digest = entry.digest,
                scope = entry.idempotency_scope,
                expires_at = statement_timestamp() + entry.window_seconds * interval '1 second',
                created_at = statement_timestamp()
            from unnest(entries) as entry
            where entry.outcome = 'pending'
              and locked ? entry.ordinal::text
              and held.tenant_id = tenant
              and held.job_type_id = entry.job_type_id
              and held.key = entry.idempotency_key
              and held.job_id <> entry.id
              and (
                  replaced ? entry.ordinal::text
                  or not pgbroker.holds_key_1(held.scope, held.expires_at, (select job.status from pgbroker.job where job.id = held.job_id))
              );
        end if;

        entries := array(
            select case
                when entry.outcome is distinct from 'pending' then entry
                when holder.job_id = entry.id then pgbroker.enqueue_with_outcome_1(
                    entry,
                    null,
                    'in place of job ' || (replaced ->> entry.ordinal::text)
                )
                when holder.holds and entry.on_conflict <> 'replace'
                    then pgbroker.enqueue_answer_1(entry, holder.job_id, holder.digest)
                when holder.holds then pgbroker.enqueue_not_replaced_1(entry, holder.job_id, holder.digest)
                -- Gone, or let go of since: the next round takes it.
                else entry
            end
            from unnest(entries) as entry
            left join lateral (
                select
                    held.job_id,
                    held.digest,
                    pgbroker.holds_key_1(held.scope, held.expires_at, (select job.status from pgbroker.job where job.id = held.job_id)) as holds
                from pgbroker.idempotency as held
                where entry.outcome = 'pending'
                  and held.tenant_id = tenant
                  and held.job_type_id = entry.job_type_id
                  and held.key = entry.idempotency_key
                -- Keeps this a look-up by key for each entry, whatever the planner thinks of their number.
                offset 0
            ) as holder on true
        );
        select count(*) into pending from unnest(entries) as entry where entry.outcome = 'pending';
    end loop;

    if followers = 0 then
        return entries;
    end if;
    return array(
        select
            case
                when (entry).outcome is distinct from 'follower' then entry
                else pgbroker.enqueue_answer_1(entry, (first).id, (first).digest)
            end
        from (
            select
                entry,
                first_value(entry) over (
                    partition by (entry).job_type_id, (entry).idempotency_key
                    -- Refused rows of the same key are nobody's first.
                    order by
                        coalesce((entry).outcome, '') not in ('', 'existing', 'follower', 'idempotency_conflict', 'not_replaceable'),
                        (entry).ordinal
                ) as first
            from unnest(entries) as entry
        ) as each
    );
end
$function$;

create function pgbroker.enqueue_with_outcome_1(entry pgbroker.enqueue_entry_1, outcome text, detail text)
returns pgbroker.enqueue_entry_1
language plpgsql immutable as $function$
begin
    entry.outcome := outcome;
    entry.detail := detail;
    return entry;
end
$function$;

-- Tell whether a job with this status still holds a key of this scope; a job that is gone holds none.
create function pgbroker.holds_key_1(scope text, expires_at timestamptz, status smallint) returns boolean
language sql stable as $function$
    select status is not null and case scope
        when 'retained' then true
        when 'window' then expires_at > statement_timestamp()
        when 'live' then status < 10
        else status <= 10 /* completed */
    end
$function$;

-- Tell whether a job may be replaced by another one: none of its attempts has begun. A successor that is a job
-- already replaces nobody: its call is one that is made again.
create function pgbroker.is_replaceable_1(holder uuid, successor uuid) returns boolean
language plpgsql stable as $function$
begin
    return exists (
        select
        from pgbroker.job
        where job.id = holder
          and job.status + 0 in (0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 5 /* blocked */)
          and job.attempt_count = 0
    )
    and not exists (select from pgbroker.job where job.id = successor);
end
$function$;

-- What an entry hears that has not replaced the holder of its key. Where its own id is a job, the call was made
-- before and the insert finds that job; where the holder has just been given back, the next round replaces it.
create function pgbroker.enqueue_not_replaced_1(entry pgbroker.enqueue_entry_1, holder uuid, holder_digest bytea)
returns pgbroker.enqueue_entry_1
language plpgsql stable as $function$
begin
    if exists (select from pgbroker.job where job.id = entry.id) then
        entry.outcome := null;
    elsif not pgbroker.is_replaceable_1(holder, entry.id) then
        entry := pgbroker.enqueue_answer_1(entry, holder, holder_digest);
    end if;
    return entry;
end
$function$;

-- Cancel the holders that entries want to replace, if they have not started. Returns the id of each by the
-- entry's ordinal; null when there is none. Only keys that are locked: nobody else takes their jobs' place.
--
-- A holder that is just being claimed is waited for. If it has started then, this undoes what it did, for its
-- next round sees that: a lock on a running job, held until the caller commits, would keep its worker from
-- settling a whole batch. Once *yields* is false the lock is kept, so that a call ends.
create function pgbroker.enqueue_replace_1(entries pgbroker.enqueue_entry_1[], locked jsonb, yields boolean) returns jsonb
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    replaced jsonb;
    started boolean;
begin
    with holder as materialized (
        select job.id, job.status, job.attempt_count, entry.ordinal, entry.id as successor
        from unnest(entries) as entry
        join pgbroker.idempotency as held
            on held.tenant_id = tenant
            and held.job_type_id = entry.job_type_id
            and held.key = entry.idempotency_key
        join pgbroker.job on job.id = any (array[held.job_id])
        where entry.outcome = 'pending'
          and entry.on_conflict = 'replace'
          and locked ? entry.ordinal::text
          and held.job_id <> entry.id
          -- One that has let go of its key, since its window is over, is left to run.
          and pgbroker.holds_key_1(held.scope, held.expires_at, job.status)
          and pgbroker.is_replaceable_1(held.job_id, entry.id)
        order by held.job_id
        for no key update of job
    ),
    cancelled as (
        update pgbroker.job
        set status = 13 /* cancelled */,
            finished_at = statement_timestamp()
        from holder
        where job.id = any (array[holder.id])
          and holder.status in (0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 5 /* blocked */)
          and holder.attempt_count = 0
        returning job.id, job.tenant_id, holder.ordinal, holder.successor
    ),
    explained as (
        insert into pgbroker.job_state (job_id, tenant_id, reason_code, reason)
        select id, tenant_id, 'replaced', 'job ' || successor || ' took its place'
        from cancelled
        on conflict (job_id) do update
        set reason_code = excluded.reason_code,
            reason = excluded.reason,
            by = '',
            cause_id = null,
            changed_at = statement_timestamp()
    )
    select
        (select jsonb_object_agg(ordinal, id) from cancelled),
        (select count(*) from holder) > (select count(*) from cancelled)
    into replaced, started;
    if started and yields then
        raise exception 'pgbroker: a holder has just started' using errcode = 'PB003';
    end if;
    return replaced;
exception when sqlstate 'PB003' then
    return null;
end
$function$;

-- What an entry hears when its key is taken: the holder, a conflict when the bodies differ, or that the holder
-- cannot be replaced. It carries the holder's digest on to the entries that follow it.
create function pgbroker.enqueue_answer_1(entry pgbroker.enqueue_entry_1, holder uuid, holder_digest bytea)
returns pgbroker.enqueue_entry_1
language plpgsql immutable as $function$
declare
    same_body constant boolean := holder_digest = entry.digest;
begin
    entry.id := holder;
    entry.digest := holder_digest;
    if entry.on_conflict = 'replace' then
        entry.outcome := 'not_replaceable';
        entry.detail := format(
            'idempotency key %L is held by job %s, which has started or ended', entry.idempotency_key, holder
        );
    elsif same_body and entry.on_conflict = 'return' then
        entry.outcome := 'existing';
    else
        entry.outcome := 'idempotency_conflict';
        entry.detail := format(
            'idempotency key %L is held by job %s%s',
            entry.idempotency_key, holder, case when same_body then '' else ' with a different body' end
        );
    end if;
    return entry;
end
$function$;
