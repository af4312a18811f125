-- Find the type and the queue of plain jobs; no row where what they have in common is not plain, or not right. Part of
-- the statement that asks, and so without a cost of its own.
create function pgbroker.plain_kind_1(
    tenant text,
    type_name text,
    queue_name text,
    type_version int,
    rank int,
    attempts int,
    who text,
    correlation text,
    trace text
) returns table (job_type_id int, queue_id smallint)
language sql stable as $function$
    select job_type.id, queue.id
    from pgbroker.job_type
    cross join pgbroker.queue
    where tenant !~ '[^A-Za-z0-9._-]'
      and length(tenant) between 1 and 63
      and type_version >= 1
      and rank between -100 and 100
      and attempts between 1 and 10000
      and (who is null or length(who) between 1 and 255)
      and (correlation is null or length(correlation) between 1 and 255)
      and (trace is null or length(trace) between 1 and 255)
      and job_type.name = type_name
      and queue.name = queue_name
      and not job_type.defaults ? 'tags'
      -- A name that a later type has taken over as an alias is that type's.
      and not exists (select from pgbroker.job_type as heir where heir.aliases @> array[type_name])
      and exists (
          select
          from pgbroker.queue_priority as known
          where known.queue_id = queue.id and known.priority = rank
      )
$function$;

-- Enqueue one plain job: ready at once, without a key, a body, options, a deadline, tags or a lane.
--
-- The same rules as enqueue_many_1's, for the entry that most calls are. Returns when the job was created, in
-- microseconds since 1970; null when it was not, and nothing was stored: something about it is not plain, or not right, and enqueue_many_1 says what.
-- A rule lives there; here it may only be asked whether the entry needs it. In plpgsql, whose plans stay: to plan
-- the same statements for each call would cost as much as they do.
create function pgbroker.enqueue_plain_1(
    new_id uuid,
    type_name text,
    queue_name text,
    arguments jsonb,
    version int,
    rank int,
    attempts int,
    who text,
    correlation text,
    trace text
) returns bigint
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    type_number int;
    queue_number smallint;
    made timestamptz;
begin
    if (new_id is not null and pgbroker.is_envelope_1(arguments)) is not true then
        return null;
    end if;

    -- A block that catches costs as much as a row, and arguments of this size are never too long.
    if pg_column_size(arguments #> '{}') > 5000 then
        begin
            if pgbroker.longer_as_text_1(arguments, 67108864) then
                return null;
            end if;
        exception when program_limit_exceeded then
            return null;
        end;
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
    values (
        new_id, queue_number, type_number, tenant, 2 /* ready */, rank,
        statement_timestamp() + interval '1 microsecond', attempts, attempts
    )
    on conflict (id) do nothing
    returning created_at into made;
    if made is not null then
        insert into pgbroker.job_payload (
            job_id, tenant_id, type_version, args, principal, correlation_id, traceparent
        )
        values (new_id, tenant, version, arguments, who, correlation, trace);
    end if;
    return extract(epoch from made) * 1000000;
end
$function$;
