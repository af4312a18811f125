-- Read what a caller wants enqueued: names become ids, and each entry that cannot be stored carries its reason.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- One job to be enqueued, resolved and checked. outcome is null as long as nothing speaks against making it.
create type pgbroker.enqueue_entry_1 as (
    ordinal int,
    id uuid,
    queue_id smallint,
    job_type_id int,
    type_version int,
    args jsonb,
    args_body text,
    options jsonb,
    priority smallint,
    max_attempts int,
    available_at timestamptz,
    deadline_at timestamptz,
    idempotency_key text,
    idempotency_scope text,
    window_seconds double precision,
    on_conflict text,
    digest bytea,
    principal text,
    correlation_id text,
    traceparent text,
    tags text[],
    lane text,
    group_name text,
    run_group_id uuid,
    name text,
    depends_on jsonb,
    on_failure smallint,
    waits boolean,
    -- How deep its group is: every member is at least as deep.
    level int,
    outcome text,
    detail text
);

-- An entry as its caller gives it. tags is not yet text[]: that reads a string as the literal of an array, and
-- holds the text of every element before anybody has counted them.
create type pgbroker.enqueue_given_1 as (
    id uuid,
    job_type text,
    queue text,
    args jsonb,
    args_body text,
    type_version int,
    options jsonb,
    priority int,
    max_attempts int,
    available_at timestamptz,
    delay_seconds double precision,
    deadline_at timestamptz,
    deadline_seconds double precision,
    idempotency_key text,
    idempotency_scope text,
    window_seconds double precision,
    on_conflict text,
    principal text,
    correlation_id text,
    traceparent text,
    tags jsonb,
    lane text,
    "group" text,
    name text,
    depends_on jsonb,
    on_failure text,
    tenant jsonb,
    tenant_id jsonb
);

-- Read the caller's array: names become ids, what the caller left out comes from the type's declaration,
-- and each row that cannot be stored carries the code and the reason. misfits has those of the entries that
-- could not be read at all, which are empty in jobs.
create function pgbroker.enqueue_entries_1(jobs jsonb, misfits jsonb) returns setof pgbroker.enqueue_entry_1
language sql stable as $function$
    -- A former name means the type that took it over, even where the former type still has its row.
    with known_type as (
        select distinct on (called.name) called.name as called, job_type.id, job_type.version, job_type.defaults
        from pgbroker.job_type
        cross join lateral (
            select job_type.name, false as former
            union all
            select alias, true from unnest(job_type.aliases) as alias
        ) as called
        order by called.name, called.former desc, job_type.id desc
    ),
    given as materialized (
        select
            entry.*,
            job_type.id as job_type_id,
            coalesce(entry.type_version, job_type.version) as version,
            queue.id as queue_id,
            coalesce(entry.args, '{"v": 1, "args": [], "kwargs": {}}') as chosen_args,
            -- A declared default that is no number in range says as little as none.
            coalesce(entry.priority, pgbroker.declared_number_1(job_type.defaults -> 'priority'), 0) as chosen_priority,
            coalesce(entry.max_attempts, pgbroker.declared_number_1(job_type.defaults -> 'max_attempts'), 5) as chosen_attempts,
            coalesce(entry.idempotency_scope, 'held') as chosen_scope,
            coalesce(entry.on_conflict, 'return') as chosen_conflict,
            coalesce(
                entry.tags,
                case when job_type.defaults ? 'tags' then pgbroker.declared_tags_1(job_type.defaults -> 'tags') end
            ) as chosen_tags,
            coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default') as owner
        from jsonb_populate_recordset(null::pgbroker.enqueue_given_1, jobs) with ordinality as entry
        left join known_type as job_type on job_type.called = entry.job_type
        left join pgbroker.queue
            on queue.name = coalesce(entry.queue, job_type.defaults ->> 'queue', 'default')
    )
    select
        ordinality::int,
        coalesce(id, pgbroker.uuid7_1()),
        queue_id,
        job_type_id,
        version,
        chosen_args,
        args_body,
        options,
        case when chosen_priority between -100 and 100 then chosen_priority::smallint end,
        chosen_attempts,
        case
            when available_at is not null then available_at
            when delay_seconds between 0 and 3e9 then statement_timestamp() + delay_seconds * interval '1 second'
        end,
        case
            when deadline_at is not null then deadline_at
            when deadline_seconds between 0 and 3e9 then statement_timestamp() + deadline_seconds * interval '1 second'
        end,
        idempotency_key,
        case when idempotency_key is not null then chosen_scope end,
        window_seconds,
        chosen_conflict,
        case
            when idempotency_key is not null and refusal is null then sha256(
                convert_to(
                    jsonb_build_array(chosen_args, chosen_priority, chosen_attempts, options -> 'backoff')::text,
                    'UTF8'
                )
            )
        end,
        principal,
        correlation_id,
        traceparent,
        case
            when chosen_tags is not null and refusal is null then nullif(
                array(
                    select tag
                    from jsonb_array_elements_text(chosen_tags) with ordinality as each (tag, place)
                    group by tag
                    order by min(place)
                ),
                '{}'
            )
        end,
        lane,
        "group",
        null::uuid,
        name,
        nullif(nullif(depends_on, '[]'), 'null'),
        pgbroker.on_failure_1(on_failure),
        false,
        0,
        refusal[1],
        refusal[2]
    from given
    -- A row hears the first that is true of it.
    cross join lateral (
        select case
            when misfits is not null and misfits ? ordinality::text then array[misfits -> ordinality::text ->> 0, misfits -> ordinality::text ->> 1]
            when job_type_id is null then array[
                'unknown_job_type',
                format('there is no job type %s', quote_nullable(left(job_type, 200)))
            ]
            when queue_id is null then array[
                'unknown_queue',
                format('there is no queue %s', quote_nullable(left(queue, 200)))
            ]
            when chosen_priority not between -100 and 100
                then array['invalid_option', format('priority %s is outside -100 to 100', chosen_priority)]
            when chosen_attempts not between 1 and 10000
                then array['invalid_option', format('max_attempts %s is outside 1 to 10000', chosen_attempts)]
            when type_version < 1
                then array['invalid_option', format('type_version %s is less than 1', type_version)]
            when length(idempotency_key) not between 1 and 255
                then array['invalid_option', 'idempotency_key is empty or longer than 255 characters']
            when chosen_scope not in ('held', 'live', 'retained', 'window') then array[
                'invalid_option',
                format(
                    'idempotency_scope %s is not held, live, retained or window',
                    quote_nullable(left(chosen_scope, 80))
                )
            ]
            when chosen_conflict not in ('return', 'reject', 'replace') then array[
                'invalid_option',
                format('on_conflict %s is not return, reject or replace', quote_nullable(left(chosen_conflict, 80)))
            ]
            when window_seconds not between 0.000001 and 316224000 then array[
                'invalid_option',
                format('window_seconds %s is not more than 0 and at most 316224000', window_seconds)
            ]
            when window_seconds is null and chosen_scope = 'window'
                then array['invalid_option', 'window_seconds is missing: how long idempotency_scope window holds a key']
            when window_seconds is not null and chosen_scope <> 'window' then array[
                'invalid_option',
                format('window_seconds is for idempotency_scope window, not %s', chosen_scope)
            ]
            when idempotency_key is null and chosen_scope = 'window'
                then array['invalid_option', 'idempotency_key is missing: idempotency_scope window is nothing without one']
            when idempotency_key is null and chosen_conflict = 'replace'
                then array['invalid_option', 'idempotency_key is missing: on_conflict replace is nothing without one']
            when delay_seconds not between 0 and 3e9
                then array['invalid_option', format('delay_seconds %s is outside 0 to 3e9', delay_seconds)]
            when deadline_seconds not between 0 and 3e9
                then array['invalid_option', format('deadline_seconds %s is outside 0 to 3e9', deadline_seconds)]
            when available_at not between '1970-01-01 00:00:00+00' and '9000-01-01 00:00:00+00'
                then array['invalid_option', format('available_at %s is outside the years 1970 to 9000', available_at)]
            when deadline_at not between '1970-01-01 00:00:00+00' and '9000-01-01 00:00:00+00'
                then array['invalid_option', format('deadline_at %s is outside the years 1970 to 9000', deadline_at)]
            when pgbroker.not_a_string_1(idempotency_key, jobs, ordinality, 'idempotency_key')
                then array['invalid_option', 'idempotency_key is not a string. Put it in quotes.']
            when pgbroker.not_a_string_1(principal, jobs, ordinality, 'principal')
                then array['invalid_option', 'principal is not a string. Put it in quotes.']
            when pgbroker.not_a_string_1(correlation_id, jobs, ordinality, 'correlation_id')
                then array['invalid_option', 'correlation_id is not a string. Put it in quotes.']
            when pgbroker.not_a_string_1(traceparent, jobs, ordinality, 'traceparent')
                then array['invalid_option', 'traceparent is not a string. Put it in quotes.']
            when pgbroker.not_a_string_1(lane, jobs, ordinality, 'lane')
                then array['invalid_option', 'lane is not a string. Put it in quotes.']
            when length(principal) not between 1 and 255
                then array['invalid_option', 'principal is empty or longer than 255 characters']
            when length(correlation_id) not between 1 and 255
                then array['invalid_option', 'correlation_id is empty or longer than 255 characters']
            when length(traceparent) not between 1 and 255
                then array['invalid_option', 'traceparent is empty or longer than 255 characters']
            when length(lane) not between 1 and 255
                then array['invalid_option', 'lane is empty or longer than 255 characters']
            when pgbroker.tags_misfit_1(tags) is not null
                then array['invalid_option', pgbroker.tags_misfit_1(tags)]
            when pgbroker.options_misfit_1(options) is not null
                then array['invalid_option', pgbroker.options_misfit_1(options)]
            when options ? 'on_exhausted' and not pgbroker.is_job_type_1(options ->> 'on_exhausted') then array[
                'unknown_job_type',
                format(
                    'options.on_exhausted names %s, and there is no such job type',
                    quote_nullable(left(options ->> 'on_exhausted', 200))
                )
            ]
            when pgbroker.not_a_string_1("group", jobs, ordinality, 'group')
                then array['invalid_option', 'group is not a string. Put it in quotes.']
            when pgbroker.not_a_string_1(name, jobs, ordinality, 'name')
                then array['invalid_option', 'name is not a string. Put it in quotes.']
            when (coalesce("group", name, on_failure) is not null or depends_on is not null)
             and pgbroker.links_misfit_1("group", name, depends_on, on_failure) is not null
                then array['invalid_option', pgbroker.links_misfit_1("group", name, depends_on, on_failure)]
            when coalesce(tenant, tenant_id) is not null then array[
                'invalid_option',
                'tenant is not for an entry to say. Set pgbroker.tenant_id for the transaction.'
            ]
            when jsonb_typeof(chosen_args) <> 'object'
                then array['invalid_argument', format('args is of type %s, not an object', jsonb_typeof(chosen_args))]
            when args_body is not null and not pgbroker.owns_body_1(owner, args_body)
                then array['invalid_option', 'args_body is no name in the folder of this tenant']
            when pgbroker.longer_as_text_1(chosen_args, 67108864)
                then array['payload_too_large', 'args take more than 64 MiB as text']
            when args_body is null and pgbroker.is_envelope_1(chosen_args) is not true then array[
                'invalid_argument',
                'args is not what a worker reads. Give {"v": 1, "args": [...], "kwargs": {...}}.'
            ]
            when args_body is not null and (chosen_args -> 'v' = '2') is not true
                then array['invalid_argument', 'args is not the stub of a body, whose "v" is 2']
        end as refusal
        -- Not pulled up, which would judge a row again wherever its refusal is read.
        offset 0
    ) as judged
    order by ordinality
$function$;

-- Say why the types of enqueue_given_1 cannot hold an entry, as its code and its reason; null when they can.
--
-- What PostgreSQL reads as a UUID, a number or an instant is for PostgreSQL to say: each value is tried, under a
-- savepoint. Only calls with such an entry come here. (A look at every value before its cast made all calls
-- slower: a pattern for a UUID takes 8 µs, the whole reading of an entry 5 µs.)
create function pgbroker.enqueue_misfit_1(entry jsonb) returns jsonb
language plpgsql stable as $function$
declare
    given pgbroker.enqueue_given_1;
    field text;
    value jsonb;
begin
    if jsonb_typeof(entry) <> 'object' then
        return jsonb_build_array(
            'invalid_entry',
            format('the entry is of type %s. Give an object with job_type.', jsonb_typeof(entry))
        );
    end if;
    begin
        given := jsonb_populate_record(null::pgbroker.enqueue_given_1, entry);
        field := 'options';
        perform pgbroker.longer_as_text_1(given.options, 65536);
        field := 'args';
        perform pgbroker.longer_as_text_1(given.args, 67108864);
        return null;
    exception
        when data_exception then
            null;
        -- internal_error is what the last three bytes before that limit raise.
        when program_limit_exceeded or internal_error then
            case field
                when 'options' then
                    return jsonb_build_array('invalid_option', 'options take more than 64 KiB as text');
                when 'args' then
                    return jsonb_build_array('payload_too_large', 'args take more than 64 MiB as text');
                else
                    null;
            end case;
    end;
    for field, value in select * from jsonb_each(entry) loop
        begin
            perform jsonb_populate_record(null::pgbroker.enqueue_given_1, jsonb_build_object(field, value));
        exception when data_exception or program_limit_exceeded then
            return jsonb_build_array(
                'invalid_option',
                format(
                    '%s is %s. Give %s.',
                    field,
                    case
                        when jsonb_typeof(value) in ('object', 'array') then 'of type ' || jsonb_typeof(value)
                        else left(value::text, 80)
                    end,
                    case field
                        when 'id' then 'a UUID'
                        when 'priority' then 'a whole number from -100 to 100'
                        when 'max_attempts' then 'a whole number from 1 to 10000'
                        when 'type_version' then 'a whole number, 1 or more'
                        when 'delay_seconds' then 'a number from 0 to 3e9'
                        when 'deadline_seconds' then 'a number from 0 to 3e9'
                        when 'window_seconds' then 'a number above 0, at most 316224000'
                        when 'available_at' then 'an instant such as "2027-01-31T12:00:00+00:00"'
                        when 'deadline_at' then 'an instant such as "2027-01-31T12:00:00+00:00"'
                        else 'a string'
                    end
                )
            );
        end;
    end loop;
    return null;
end
$function$;

-- Say which entries have a key that means nothing: a misspelt one must not be an option left out. By the
-- entry's place, its code and its reason; null when there is none.
create function pgbroker.enqueue_unknown_keys_1(jobs jsonb) returns jsonb
language sql stable as $function$
    with known as materialized (
        select array_agg(name order by name) as names
        from jsonb_object_keys(to_jsonb(jsonb_populate_record(null::pgbroker.enqueue_given_1, '{}'))) as name
    )
    select jsonb_object_agg(
        place,
        jsonb_build_array(
            'invalid_option',
            format(
                'there is no key %s. Use %s.',
                to_jsonb(left((select min(name) from jsonb_object_keys(given - known.names) as name), 80)),
                array_to_string(array_remove(array_remove(known.names, 'tenant'), 'tenant_id'), ', ')
            )
        )
    )
    from known
    cross join jsonb_array_elements(jobs) with ordinality as each (given, place)
    where case when jsonb_typeof(given) = 'object' then given - known.names <> '{}' end
$function$;
