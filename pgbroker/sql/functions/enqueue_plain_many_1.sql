-- Enqueue many plain jobs of one kind: all of them, or none. enqueue_plain_1 is the same for one job.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- arguments is an array with those of each job, in the order of new_ids. Returns when the jobs were created; null when
-- they were not, and nothing was stored: something about one of them is not plain, or not right, and enqueue_many_1
-- says what of which. A rule lives there; here it may only be asked whether the jobs need it.
--
-- What is found out only by storing undoes it: an id that exists, two that are the same, arguments that no worker
-- could read. The caller's transaction stands as it did.
create function pgbroker.enqueue_plain_many_1(
    new_ids uuid[],
    type_name text,
    queue_name text,
    arguments jsonb,
    version int,
    rank int,
    attempts int,
    who text,
    correlation text,
    trace text
) returns timestamptz
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    made constant timestamptz := statement_timestamp();
    type_number int;
    queue_number smallint;
    stored bigint;
begin
    if jsonb_typeof(arguments) is distinct from 'array' or array_ndims(new_ids) > 1 then
        return null;
    end if;
    if jsonb_array_length(arguments) is distinct from cardinality(new_ids) or array_position(new_ids, null) is not null then
        return null;
    end if;

    select kind.job_type_id, kind.queue_id
    into type_number, queue_number
    from pgbroker.plain_kind_1(
        tenant, type_name, queue_name, version, rank, attempts, who, correlation, trace
    ) as kind;
    if not found then
        return null;
    end if;

    insert into pgbroker.job (
        id, queue_id, job_type_id, tenant_id, status, priority, ready_at, max_attempts, declared_attempts
    )
    select
        new_id, queue_number, type_number, tenant, 2 /* ready */, rank,
        -- Each row its own instant: a claim that remembers where it stopped must tell them apart.
        made + place * interval '1 microsecond', attempts, attempts
    from unnest(new_ids) with ordinality as each (new_id, place)
    on conflict (id) do nothing;
    get diagnostics stored = row_count;
    if stored <> cardinality(new_ids) then
        raise exception 'pgbroker: a job is not plain' using errcode = 'PB004';
    end if;

    insert into pgbroker.job_payload (job_id, tenant_id, type_version, args, principal, correlation_id, traceparent)
    select new_id, tenant, version, args, who, correlation, trace
    from rows from (unnest(new_ids), jsonb_array_elements(arguments)) as each (new_id, args)
    where pgbroker.is_envelope_1(args)
      and not pgbroker.longer_as_text_1(args, 67108864);
    get diagnostics stored = row_count;
    if stored <> cardinality(new_ids) then
        raise exception 'pgbroker: a job is not plain' using errcode = 'PB004';
    end if;
    return made;
exception when sqlstate 'PB004' or program_limit_exceeded then
    return null;
end
$function$;
