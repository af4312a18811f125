-- Enqueue one job from SQL: psql, a trigger, another language. Returns its id.
--
-- A wrapper over the newest enqueue_many. Left-out options come from the type's declaration. A refusal is an
-- error with errcode PB001 whose hint is pgbroker's error code; nothing was stored then. With notify, idle
-- workers are woken when the transaction commits; without it polling finds the job. group, name, depends_on and
-- on_failure are those of an entry of enqueue_many_1.
create function pgbroker.enqueue(
    job_type text,
    kwargs jsonb default '{}',
    queue text default null,
    priority int default null,
    run_after timestamptz default null,
    max_attempts int default null,
    deadline timestamptz default null,
    idempotency_key text default null,
    idempotency_scope text default null,
    window_seconds double precision default null,
    on_conflict text default null,
    tags text[] default null,
    correlation_id text default null,
    options jsonb default null,
    notify boolean default false,
    "group" text default null,
    name text default null,
    depends_on jsonb default null,
    on_failure text default null
) returns uuid
language plpgsql volatile as $function$
declare
    answer record;
begin
    if jsonb_typeof(kwargs) is distinct from 'object' then
        raise exception 'kwargs is %, not an object of named arguments', coalesce(jsonb_typeof(kwargs), 'null')
            using errcode = 'PB001', hint = 'invalid_argument';
    end if;
    select * into strict answer
    from pgbroker.enqueue_many_1(
        jsonb_build_array(
            jsonb_strip_nulls(
                jsonb_build_object(
                    'job_type', job_type,
                    'queue', queue,
                    'priority', priority,
                    'available_at', run_after,
                    'max_attempts', max_attempts,
                    'deadline_at', deadline,
                    'idempotency_key', idempotency_key,
                    'idempotency_scope', idempotency_scope,
                    'window_seconds', window_seconds,
                    'on_conflict', on_conflict,
                    'correlation_id', correlation_id,
                    'group', "group",
                    'name', name,
                    'on_failure', on_failure
                )
            )
            -- Outside of the stripping: a null inside of these is a value.
            || jsonb_build_object(
                'tags', tags,
                'options', options,
                'args', jsonb_build_object('v', 1, 'args', '[]'::jsonb, 'kwargs', kwargs)
            )
            -- The key alone makes a job one that is looked at for others.
            || case when depends_on is null then '{}' else jsonb_build_object('depends_on', depends_on) end
        )
    );
    if answer.outcome not in ('created', 'replaced', 'existing') then
        raise exception '%', coalesce(answer.detail, answer.outcome) using errcode = 'PB001', hint = answer.outcome;
    end if;
    if notify then
        perform pg_notify('pgbroker', known.name)
        from pgbroker.job
        join pgbroker.queue as known on known.id = job.queue_id
        where job.id = answer.job_id;
    end if;
    return answer.job_id;
end
$function$;
