-- The one rule book for enqueueing: every client, in every language, comes through enqueue_many_1.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Enqueue every job of a JSON array in the caller's transaction and return one row per entry, in order.
--
-- Keys of an entry: job_type (required), queue, args {"v": 1, "args": [], "kwargs": {}}, type_version, options,
-- priority, max_attempts, available_at or delay_seconds, deadline_at or deadline_seconds, idempotency_key,
-- idempotency_scope (held, live, retained, window), window_seconds, on_conflict (return, reject, replace),
-- principal, correlation_id, traceparent, tags, lane, id, args_body (the name of a body that pgbroker's client has
-- stored, in the tenant's folder; args is its stub then), group (the name of an open run group), name (the job's name
-- in it), depends_on (an array of references), on_failure (cancel, block, ignore).
--
-- A reference is the id of a job (of an entry of the same call too), {"job": id}, {"group": name},
-- {"group": name, "job": name}, or a name alone, of a job in the entry's own group or of a run group. An object may
-- say on_failure, and within_seconds: what it names need not exist yet, for so long.
--
-- outcome is created, replaced (created, in place of the job that detail names), existing (the key's or the id's
-- job is returned) or an error code, with the reason in detail: one bad row does not sink the others. The tenant
-- is the session's pgbroker.tenant_id. At REPEATABLE READ and above a contended key fails with a serialisation
-- error (40001): run the transaction again.
create function pgbroker.enqueue_many_1(jobs jsonb)
returns table (ordinal int, job_id uuid, outcome text, detail text)
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    entries pgbroker.enqueue_entry_1[];
    misfits jsonb;
    turns jsonb[];
    made uuid[];
    paid bigint;
    wanted int;
    tagged boolean;
    linked boolean;
    edges pgbroker.edge_1[];
    answers text[][];
    ids uuid[];
    late uuid[];
begin
    if tenant ~ '[^A-Za-z0-9._-]' or length(tenant) not between 1 and 63 then
        raise exception 'pgbroker.tenant_id % is not a tenant id: 1 to 63 of A-Z, a-z, 0-9, ".", "_", "-"', quote_literal(left(tenant, 80))
            using errcode = 'PB001', hint = 'invalid_tenant';
    end if;
    if jsonb_typeof(jobs) <> 'array' then
        raise exception 'jobs is of type %, not an array of entries', jsonb_typeof(jobs)
            using errcode = 'PB001', hint = 'invalid_argument';
    end if;
    misfits := pgbroker.enqueue_unknown_keys_1(jobs);
    begin
        entries := array(select entry from pgbroker.enqueue_entries_1(jobs, misfits) as entry);
    exception when data_exception or program_limit_exceeded or internal_error then
        select coalesce(misfits, '{}') || coalesce(jsonb_object_agg(place, misfit), '{}')
        into misfits
        from (
            select place, case when misfits ? place::text then null else pgbroker.enqueue_misfit_1(given) end as misfit
            from jsonb_array_elements(jobs) with ordinality as each (given, place)
        ) as tried
        where misfit is not null;
        jobs := (
            select jsonb_agg(case when misfits ? place::text then '{}' else given end order by place)
            from jsonb_array_elements(jobs) with ordinality as each (given, place)
        );
        entries := array(select entry from pgbroker.enqueue_entries_1(jobs, misfits) as entry);
    end;
    linked := jsonb_path_exists(jobs, '$[*] ? (exists(@.group) || exists(@.depends_on))');
    if linked then
        select * into entries, edges from pgbroker.enqueue_links_1(entries);
        if edges <> '{}'
            and coalesce(current_setting('pgbroker.step', true), '') = ''
            and pgbroker.enqueue_is_delicate_1(entries) then
            return query select * from pgbroker.enqueue_in_steps_1(jobs, entries, edges) as each order by each.ordinal;
            return;
        end if;
    end if;
    if jsonb_path_exists(jobs, '$[*].idempotency_key ? (@ != null)') then
        if jsonb_path_exists(jobs, '$[*].on_conflict ? (@ == "replace")') then
            turns := pgbroker.enqueue_turns_1(entries);
            if cardinality(turns) > 1 and edges <> '{}' then
                return query select * from pgbroker.enqueue_one_by_one_1(jobs, entries, edges) as each order by each.ordinal;
                return;
            elsif cardinality(turns) > 1 then
                return query select * from pgbroker.enqueue_in_turns_1(jobs, turns) as each order by each.ordinal;
                return;
            end if;
        end if;
        entries := pgbroker.enqueue_hold_keys_1(entries);
        if linked then
            entries := pgbroker.enqueue_refused_1(entries, edges);
        end if;
    end if;

    with new_job as (
        insert into pgbroker.job (
            id, queue_id, job_type_id, tenant_id, status, priority, ready_at, available_at,
            max_attempts, declared_attempts, deadline_at, lane, run_group_id, name
        )
        select
            entry.id,
            entry.queue_id,
            entry.job_type_id,
            tenant,
            case
                when entry.waits then 1 /* waiting */
                when entry.available_at > statement_timestamp() then 0 /* scheduled */
                else 2 /* ready */
            end,
            entry.priority,
            -- Each row its own instant: a claim that remembers where it stopped must tell them apart.
            case
                when entry.waits or entry.available_at > statement_timestamp() then null
                else statement_timestamp() + entry.ordinal * interval '1 microsecond'
            end,
            case when entry.available_at > statement_timestamp() then entry.available_at end,
            entry.max_attempts,
            entry.max_attempts,
            entry.deadline_at,
            entry.lane,
            entry.run_group_id,
            entry.name
        from unnest(entries) as entry
        where entry.outcome is null
        -- The id, or the name in the group.
        on conflict do nothing
        returning job.id
    ),
    -- Where the id existed its payload does too. No join with new_job: over two unknown sizes it is quadratic.
    new_payload as (
        insert into pgbroker.job_payload (
            job_id, tenant_id, type_version, args, args_body, options, idempotency_key, idempotency_scope,
            window_seconds, principal, correlation_id, traceparent, tags
        )
        select
            entry.id, tenant, entry.type_version, entry.args, entry.args_body, entry.options,
            entry.idempotency_key, entry.idempotency_scope, entry.window_seconds, entry.principal, entry.correlation_id,
            entry.traceparent, entry.tags
        from unnest(entries) as entry
        where entry.outcome is null
        on conflict do nothing
        returning job_payload.job_id
    ),
    new_priority as (
        insert into pgbroker.queue_priority (queue_id, priority)
        select distinct entry.queue_id, entry.priority
        from unnest(entries) as entry
        where entry.outcome is null
          and not exists (
              select
              from pgbroker.queue_priority as known
              where known.queue_id = entry.queue_id and known.priority = entry.priority
          )
    )
    select (select array_agg(new_job.id) from new_job), (select count(*) from new_payload)
    into made, paid;
    -- Arguments that somebody stored for an id before its job are not this caller's.
    if paid < coalesce(cardinality(made), 0) then
        raise exception 'pgbroker: arguments are stored already under the id of a new job'
            using errcode = 'unique_violation', hint = 'Enqueue with another id, or with none.';
    end if;

    select count(*), bool_or(entry.tags is not null)
    into wanted, tagged
    from unnest(entries) as entry
    where entry.outcome is null;
    if tagged then
        perform pgbroker.enqueue_tags_1(entries, made);
    end if;
    if wanted > coalesce(cardinality(made), 0) then
        if not linked then
            return query select * from pgbroker.enqueue_again_1(jobs, entries, made) as again order by again.ordinal;
            return;
        end if;
        -- What waits for what is known already, by places: it follows with the ids that the jobs have in the end.
        jobs := (
            select jsonb_agg(case jsonb_typeof(given) when 'object' then given - 'depends_on' else given end order by place)
            from jsonb_array_elements(jobs) with ordinality as each (given, place)
        );
        select
            array_agg(again.job_id order by again.ordinal),
            array_agg(array[again.outcome, again.detail] order by again.ordinal),
            array_agg(again.job_id) filter (
                where again.outcome in ('created', 'replaced') and (again.job_id in (select unnest(made))) is not true
            )
        into ids, answers, late
        from pgbroker.enqueue_again_1(jobs, entries, made) as again;
        made := made || late;
        if exists (
            select
            from unnest(edges) as edge
            where answers[edge.on_ordinal][1] not in ('created', 'replaced', 'existing')
              and (ids[edge.ordinal] in (select unnest(made))) is true
        ) then
            -- The jobs that wait for it are there already: nothing of the call is kept.
            raise exception 'pgbroker: an entry was refused only when it was stored, and others of the call depend on it'
                using errcode = 'PB001', hint = 'prerequisite_refused';
        end if;
        update pgbroker.job
        set status = 1 /* waiting */,
            ready_at = null
        where job.id = any (late)
          and job.status in (0 /* scheduled */, 2 /* ready */)
          and (job.id in (select ids[edge.ordinal] from unnest(edges) as edge)) is true;
        perform pgbroker.enqueue_edges_1(entries, edges, ids, made);
        return query
            select place, ids[place], answers[place][1], answers[place][2]
            from generate_series(1, cardinality(ids)) as place
            order by place;
        return;
    end if;
    if linked then
        ids := array(select entry.id from unnest(entries) as entry order by entry.ordinal);
        perform pgbroker.enqueue_edges_1(entries, edges, ids, made);
    end if;
    return query
        select
            entry.ordinal,
            entry.id,
            coalesce(entry.outcome, case when entry.detail is null then 'created' else 'replaced' end),
            entry.detail
        from unnest(entries) as entry
        order by entry.ordinal;
end
$function$;

-- Make the tags of the jobs that were made findable. Of the entries that share an id, the first was made.
create function pgbroker.enqueue_tags_1(entries pgbroker.enqueue_entry_1[], made uuid[]) returns void
language sql volatile as $function$
    insert into pgbroker.job_tag (tag, tenant_id, job_id)
    select tag, coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'), entry.id
    from (
        select
            each.id,
            each.tags,
            row_number() over (partition by each.id order by each.ordinal) as place
        from unnest(entries) as each
        where each.outcome is null
    ) as entry
    cross join unnest(entry.tags) as tag
    where entry.place = 1
      and entry.id in (select unnest(made))
    order by tag, entry.id
$function$;

-- Put the entries of a call into turns: one that asks to replace the holder of a key that an entry before it has
-- comes in a later turn than that one. Returns the ordinals of each turn.
create function pgbroker.enqueue_turns_1(entries pgbroker.enqueue_entry_1[]) returns jsonb[]
language sql stable as $function$
    select array_agg(ordinals order by turn)
    from (
        select turn, jsonb_agg(ordinal order by ordinal) as ordinals
        from (
            select
                entry.ordinal,
                coalesce(
                    case
                        when entry.outcome is null and entry.idempotency_key is not null
                            then count(*) filter (where entry.on_conflict = 'replace') over same_key
                            - (first_value(entry.on_conflict) over same_key = 'replace')::int
                    end,
                    0
                ) as turn
            from unnest(entries) as entry
            window same_key as (
                partition by entry.job_type_id, entry.idempotency_key, entry.outcome is null
                order by entry.ordinal
            )
        ) as each
        group by turn
    ) as turns
$function$;

-- Enqueue a call turn by turn, as so many calls in the same transaction.
create function pgbroker.enqueue_in_turns_1(jobs jsonb, turns jsonb[])
returns table (ordinal int, job_id uuid, outcome text, detail text)
language plpgsql volatile as $function$
declare
    ordinals jsonb;
begin
    foreach ordinals in array turns loop
        return query
            select (ordinals ->> (answer.ordinal - 1))::int, answer.job_id, answer.outcome, answer.detail
            from pgbroker.enqueue_many_1(
                (
                    select jsonb_agg(jobs -> (place::int - 1) order by place::int)
                    from jsonb_array_elements_text(ordinals) as place
                )
            ) as answer;
    end loop;
end
$function$;

-- Finish a call in which some ids already existed, or names in a group. Ours with the same body and key: the stored job
-- is the answer, which makes a repeated call with the same id harmless; with another body it is refused, and a key it
-- took is let go of. Another tenant's id: the job is made under a new one, which is the answer. So is one whose name was
-- taken meanwhile, to hear that.
create function pgbroker.enqueue_again_1(jobs jsonb, entries pgbroker.enqueue_entry_1[], made uuid[])
returns table (ordinal int, job_id uuid, outcome text, detail text)
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    asked record;
    entry pgbroker.enqueue_entry_1;
    taken uuid[] := '{}';
    given uuid[] := '{}';
    fresh uuid;
    answer record;
    same boolean;
begin
    -- Of the entries that share an id, the first was made. "in" as a value is a hashed look-up; a join of two
    -- arrays, or "= any", is quadratic.
    for asked in
        select
            each as entry,
            each.id in (select unnest(made))
            and row_number() over (partition by each.id order by each.ordinal) = 1 as is_made
        from unnest(entries) as each
        where each.outcome is null
        order by each.ordinal
    loop
        entry := asked.entry;
        if asked.is_made then
            return query
                select
                    entry.ordinal,
                    entry.id,
                    case when entry.detail is null then 'created' else 'replaced' end,
                    entry.detail;
            continue;
        end if;

        select
            job.job_type_id = entry.job_type_id
            and payload.args = entry.args
            and payload.idempotency_key is not distinct from entry.idempotency_key
        into same
        from pgbroker.job
        join pgbroker.job_payload as payload on payload.job_id = job.id
        where job.id = entry.id
          and (job.tenant_id = tenant) is true;
        if same then
            return query select entry.ordinal, entry.id, 'existing'::text, null::text;
        elsif same is not null then
            delete from pgbroker.idempotency as held
            where held.tenant_id = tenant
              and held.job_type_id = entry.job_type_id
              and held.key = entry.idempotency_key
              and held.job_id = entry.id
              and not exists (
                  select
                  from pgbroker.job_payload as payload
                  where payload.job_id = entry.id and payload.idempotency_key = entry.idempotency_key
              );
            return query
                select
                    entry.ordinal,
                    entry.id,
                    'invalid_option'::text,
                    format('id %s is taken by a job with another body or key', entry.id);
        else
            fresh := pgbroker.uuid7_1();
            taken := taken || entry.id;
            given := given || fresh;
            update pgbroker.idempotency as held
            set job_id = fresh
            where held.tenant_id = tenant
              and held.job_type_id = entry.job_type_id
              and held.key = entry.idempotency_key
              and held.job_id = entry.id;
            select * into answer
            from pgbroker.enqueue_many_1(
                jsonb_build_array((jobs -> (entry.ordinal - 1)) || jsonb_build_object('id', fresh))
            );
            if answer.outcome not in ('created', 'replaced', 'existing') then
                -- Its name in the group was taken, a moment ago.
                delete from pgbroker.idempotency as held
                where held.tenant_id = tenant
                  and held.job_type_id = entry.job_type_id
                  and held.key = entry.idempotency_key
                  and held.job_id = fresh;
            end if;
            -- Arguments are stored even where a job was not, since its name was taken.
            if entry.name is not null then
                delete from pgbroker.job_payload as payload
                where payload.job_id = entry.id
                  and payload.tenant_id = tenant
                  and not exists (select from pgbroker.job where job.id = entry.id);
            end if;
            return query
                select
                    entry.ordinal,
                    answer.job_id,
                    -- Whose place it took was said before its id turned out to be taken.
                    case when answer.outcome = 'created' and entry.detail is not null then 'replaced' else answer.outcome end,
                    coalesce(answer.detail, entry.detail);
        end if;
    end loop;

    -- A follower of an entry whose id was replaced follows it to its new id.
    return query
        select named.ordinal, coalesce(named.new_id, named.id), named.outcome, named.detail
        from (
            select
                mixed.ordinal,
                mixed.id,
                mixed.outcome,
                mixed.detail,
                first_value(mixed.new_id) over (partition by mixed.id order by mixed.new_id nulls last) as new_id
            from (
                select each.ordinal, each.id, each.outcome, each.detail, null::uuid as new_id
                from unnest(entries) as each
                where each.outcome is not null
                union all
                select null, replaced.id, null, null, replaced.new_id
                from unnest(taken, given) as replaced (id, new_id)
            ) as mixed
        ) as named
        where named.ordinal is not null;
end
$function$;
