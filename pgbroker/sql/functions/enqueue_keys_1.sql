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
create function pgbroker.enqueue_hold_keys_1(entries pgbroker.enqueue_entry_1[])
returns pgbroker.enqueue_entry_1[]
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    round int := 0;
begin
    -- pending: the first entry with its key. follower: a later one of the same call.
    entries := array(
        select pgbroker.enqueue_with_outcome_1(
            entry,
            case
                when entry.outcome is not null or entry.idempotency_key is null then entry.outcome
                when row_number() over (
                    partition by entry.job_type_id, entry.idempotency_key, entry.outcome is null
                    order by entry.ordinal
                ) = 1 then 'pending'
                else 'follower'
            end
        )
        from unnest(entries) as entry
    );
    loop
        round := round + 1;
        if round > 10 then
            -- Ten times in a row a holder vanished between two statements: somebody deletes keys in a loop.
            raise exception 'idempotency keys are contended' using errcode = '40001';
        end if;

        insert into pgbroker.idempotency (tenant_id, job_type_id, key, job_id, digest, scope)
        select tenant, entry.job_type_id, entry.idempotency_key, entry.id, entry.digest, entry.idempotency_scope
        from unnest(entries) as entry
        where entry.outcome = 'pending'
        order by entry.job_type_id, entry.idempotency_key collate "C"
        on conflict (tenant_id, job_type_id, key) do nothing;

        -- Wait only where the holder seems to let go: a plain duplicate takes no lock.
        perform
        from unnest(entries) as entry
        join pgbroker.idempotency as held
            on held.tenant_id = tenant
            and held.job_type_id = entry.job_type_id
            and held.key = entry.idempotency_key
        where entry.outcome = 'pending'
          and held.job_id <> entry.id
          and not pgbroker.holds_key_1(held.scope, (select job.status from pgbroker.job where job.id = held.job_id))
        order by held.job_type_id, held.key
        for update of held;
        if found then
            update pgbroker.idempotency as held
            set job_id = entry.id,
                digest = entry.digest,
                scope = entry.idempotency_scope,
                created_at = statement_timestamp()
            from unnest(entries) as entry
            where entry.outcome = 'pending'
              and held.tenant_id = tenant
              and held.job_type_id = entry.job_type_id
              and held.key = entry.idempotency_key
              and held.job_id <> entry.id
              and not pgbroker.holds_key_1(held.scope, (select job.status from pgbroker.job where job.id = held.job_id));
        end if;

        entries := array(
            select case
                when entry.outcome is distinct from 'pending' then entry
                when holder.job_id = entry.id then pgbroker.enqueue_with_outcome_1(entry, null)
                when holder.holds then pgbroker.enqueue_answer_1(entry, holder.job_id, holder.digest)
                -- Gone, or let go of since: the next round takes it.
                else entry
            end
            from unnest(entries) as entry
            left join lateral (
                select
                    held.job_id,
                    held.digest,
                    pgbroker.holds_key_1(held.scope, (select job.status from pgbroker.job where job.id = held.job_id)) as holds
                from pgbroker.idempotency as held
                where entry.outcome = 'pending'
                  and held.tenant_id = tenant
                  and held.job_type_id = entry.job_type_id
                  and held.key = entry.idempotency_key
                -- Keeps this a look-up by key for each entry, whatever the planner thinks of their number.
                offset 0
            ) as holder on true
        );
        exit when not exists (select from unnest(entries) as entry where entry.outcome = 'pending');
    end loop;

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
                    order by coalesce((entry).outcome, '') not in ('', 'existing', 'follower', 'idempotency_conflict'), (entry).ordinal
                ) as first
            from unnest(entries) as entry
        ) as each
    );
end
$function$;

create function pgbroker.enqueue_with_outcome_1(entry pgbroker.enqueue_entry_1, outcome text)
returns pgbroker.enqueue_entry_1
language plpgsql immutable as $function$
begin
    entry.outcome := outcome;
    return entry;
end
$function$;

-- Tell whether a job with this status still holds a key of this scope; a job that is gone holds none.
create function pgbroker.holds_key_1(scope text, status smallint) returns boolean
language sql immutable as $function$
    select status is not null and case scope
        when 'retained' then true
        when 'live' then status < 10
        else status <= 10 /* completed */
    end
$function$;

-- What an entry hears when its key is taken: the holder, or a conflict when the bodies differ. It carries the
-- holder's digest on to the entries that follow it.
create function pgbroker.enqueue_answer_1(entry pgbroker.enqueue_entry_1, holder uuid, holder_digest bytea)
returns pgbroker.enqueue_entry_1
language plpgsql immutable as $function$
declare
    same_body constant boolean := holder_digest = entry.digest;
begin
    entry.id := holder;
    entry.digest := holder_digest;
    if same_body and entry.on_conflict = 'return' then
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
