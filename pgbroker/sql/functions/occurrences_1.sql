-- Occurrences of schedules: what a tick creates, once, in the tenant of its schedule.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- One occurrence on its way: state is null until it is known what became of it.
create type pgbroker.occurrence_1 as (
    schedule_id uuid,
    scheduled_for timestamptz,
    start_at timestamptz,
    kind text,
    tenant_id text,
    name text,
    template jsonb,
    state text,
    job_id uuid,
    run_group_id uuid,
    error_code text,
    error text
);

-- Whether what an occurrence created is not over.
create function pgbroker.is_live_run_1(job_id uuid, run_group_id uuid) returns boolean
language sql stable as $function$
    select exists (select from pgbroker.job where job.id = any (array[is_live_run_1.job_id]) and job.status + 0 < 10)
        or exists (
            select
            from pgbroker.run_group
            where run_group.id = any (array[is_live_run_1.run_group_id]) and run_group.state + 0 < 10
        )
$function$;

-- The occurrences of a schedule that are not over. What was made up for the past runs beside the others, and counts for
-- nothing. Those that were seen to be over are in no index that this reads: it reads what lives, and what has ended since
-- the schedule was looked at last.
create function pgbroker.live_runs_1(schedule uuid)
returns table (scheduled_for timestamptz, tenant_id text, job_id uuid, run_group_id uuid)
language sql stable as $function$
    select run.scheduled_for, run.tenant_id, run.job_id, run.run_group_id
    from (
        select each.scheduled_for, each.tenant_id, each.job_id, each.run_group_id
        from pgbroker.schedule_run as each
        where each.schedule_id = live_runs_1.schedule
          and each.state = 'created'
          and each.kind <> 'backfill'
          and not each.seen_over
        -- Keeps the look at jobs behind it, one for each.
        offset 0
    ) as run
    where pgbroker.is_live_run_1(run.job_id, run.run_group_id)
$function$;

-- Note which occurrences of schedules, whose rows are held, are over, so that nobody looks at them again.
--
-- Locked first, and looked at in a statement of its own: a retry that has committed in between is seen, and one that has
-- not either holds the row, which is left alone then, or takes the note back once this transaction is over.
create function pgbroker.note_over_1(schedules uuid[]) returns void
language plpgsql volatile
    set enable_seqscan = off
    set plan_cache_mode = force_custom_plan
as $function$
declare
    open_schedules uuid[];
    open_ticks timestamptz[];
begin
    select array_agg(run.schedule_id), array_agg(run.scheduled_for)
    into open_schedules, open_ticks
    from (
        select each.schedule_id, each.scheduled_for
        from pgbroker.schedule_run as each
        where each.schedule_id = any (schedules)
          and each.state = 'created'
          and each.kind <> 'backfill'
          and not each.seen_over
        for no key update skip locked
    ) as run;
    if open_ticks is null then
        return;
    end if;
    update pgbroker.schedule_run as run
    set seen_over = true
    from unnest(open_schedules, open_ticks) as open (schedule_id, scheduled_for)
    where run.schedule_id = any (array[open.schedule_id])
      and run.scheduled_for = any (array[open.scheduled_for])
      and not pgbroker.is_live_run_1(run.job_id, run.run_group_id);
end
$function$;

-- A job or a run group has come back: its occurrence is not over after all. Also where there is no such note yet: whoever
-- is about to write one is to meet this change.
create function pgbroker.note_back_1(job uuid, run_group uuid) returns void
language plpgsql volatile
    set enable_seqscan = off
    set plan_cache_mode = force_generic_plan
as $function$
begin
    if job is not null then
        update pgbroker.schedule_run as run
        set seen_over = false
        where run.job_id = note_back_1.job;
    else
        update pgbroker.schedule_run as run
        set seen_over = false
        where run.run_group_id = note_back_1.run_group;
    end if;
end
$function$;

create function pgbroker.group_is_back_1() returns trigger
language plpgsql as $function$
begin
    perform pgbroker.note_back_1(null, new.id);
    return null;
end
$function$;

create trigger group_is_back
    after update of state on pgbroker.run_group
    for each row
    when (old.state >= 10 and new.state < 10)
    execute function pgbroker.group_is_back_1();

-- Enqueue those of a tenant's occurrences whose job is plain, all in one statement: their places, and the jobs. None, and
-- null, where one of them cannot be stored. Of the others enqueue_many_1 says what they are.
--
-- Schedules that are due at once mostly say the same but for the arguments, and what they say is looked at once. The rules
-- are those of enqueue_plain_many_1. What is not plain here are the instants, of the tick and of a later start.
create function pgbroker.enqueue_plain_occurrences_1(
    occurrences pgbroker.occurrence_1[], out places int[], out jobs uuid[]
)
language plpgsql volatile as $function$
declare
    tenant constant text := coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default');
    stored bigint;
    paid bigint;
begin
    with alike as materialized (
        select
            (asked.entry - 'args')::text::jsonb as said,
            array_agg(asked.place) as places,
            array_agg(asked.entry -> 'args') as arguments,
            array_agg(asked.scheduled_for) as ticks,
            array_agg(asked.start_at) as starts
        from (
            select each.ordinality::int as place, each.template -> 'jobs' -> 0 as entry, each.scheduled_for, each.start_at
            from unnest(occurrences) with ordinality as each
        ) as asked
        where pgbroker.is_envelope_1(asked.entry -> 'args')
          and not pgbroker.longer_as_text_1(asked.entry -> 'args', 67108864)
        -- As text: to jsonb 7 is 7.0, which is no whole number for those that may be written down.
        group by (asked.entry - 'args')::text
    ),
    whole as materialized (
        select
            alike.*,
            coalesce(
                pgbroker.declared_number_1(alike.said -> 'type_version'),
                (select job_type.version from pgbroker.job_type where job_type.name = alike.said ->> 'job_type')
            ) as version,
            pgbroker.declared_number_1(alike.said -> 'priority') as rank,
            pgbroker.declared_number_1(alike.said -> 'max_attempts') as attempts
        from alike
        where alike.said - '{job_type,queue,type_version,priority,max_attempts}'::text[] = '{}'
          and jsonb_typeof(alike.said -> 'job_type') = 'string'
          and jsonb_typeof(alike.said -> 'queue') = 'string'
          and jsonb_typeof(coalesce(alike.said -> 'type_version', '1')) = 'number'
          -- What becomes of a fraction, or of a number that is too large, is not for here to say.
          and concat_ws(' ', alike.said ->> 'type_version', alike.said ->> 'priority', alike.said ->> 'max_attempts')
              !~ '[^0-9 -]|[0-9]{10}'
    ),
    plain as materialized (
        select
            pgbroker.uuid7_1() as id, kind.job_type_id, kind.queue_id, whole.version, whole.rank, whole.attempts,
            each.place, each.args, each.tick,
            case when each.start_at > statement_timestamp() then each.start_at end as later
        from whole
        cross join lateral pgbroker.plain_kind_1(
            tenant, whole.said ->> 'job_type', whole.said ->> 'queue', whole.version, whole.rank, whole.attempts,
            null, null, null
        ) as kind
        cross join lateral unnest(whole.places, whole.arguments, whole.ticks, whole.starts)
            as each (place, args, tick, start_at)
    ),
    new_job as (
        insert into pgbroker.job (
            id, queue_id, job_type_id, tenant_id, status, priority, ready_at, available_at, max_attempts,
            declared_attempts
        )
        select
            plain.id,
            plain.queue_id,
            plain.job_type_id,
            tenant,
            case when plain.later is null then 2 /* ready */ else 0 /* scheduled */ end,
            plain.rank,
            case when plain.later is null then statement_timestamp() + plain.place * interval '1 microsecond' end,
            plain.later,
            plain.attempts,
            plain.attempts
        from plain
        returning 1
    ),
    new_payload as (
        insert into pgbroker.job_payload (job_id, tenant_id, type_version, args, options)
        select
            plain.id, tenant, plain.version, plain.args, jsonb_build_object('scheduled_for', plain.tick)
        from plain
        returning 1
    )
    select array_agg(plain.place), array_agg(plain.id), (select count(*) from new_job), (select count(*) from new_payload)
    into places, jobs, stored, paid
    from plain;
    -- A trigger of somebody's may pass a row over.
    if least(stored, paid) < cardinality(jobs) then
        raise exception 'pgbroker: a job is not plain' using errcode = 'PB004';
    end if;
exception when others then
    if pgbroker.is_passing_1(sqlstate) then
        raise;
    end if;
    places := null;
    jobs := null;
end
$function$;

-- Enqueue entries, whatever is wrong with some of them: where the call fails as a whole, each entry has its own.
create function pgbroker.enqueue_each_1(jobs jsonb)
returns table (ordinal int, job_id uuid, outcome text, detail text)
language plpgsql volatile as $function$
declare
    place int;
begin
    begin
        return query select answer.* from pgbroker.enqueue_many_1(jobs) as answer;
        return;
    exception when others then
        if pgbroker.is_passing_1(sqlstate) then
            raise;
        end if;
    end;
    for place in 1 .. jsonb_array_length(jobs) loop
        begin
            return query
                select place, answer.job_id, answer.outcome, answer.detail
                from pgbroker.enqueue_many_1(jsonb_build_array(jobs -> (place - 1))) as answer;
        exception when others then
            if pgbroker.is_passing_1(sqlstate) then
                raise;
            end if;
            return query select place, null::uuid, 'enqueue_failed'::text, left(sqlerrm, 1000);
        end;
    end loop;
end
$function$;

-- The entry of a template as it is enqueued for one tick.
create function pgbroker.occurrence_entry_1(entry jsonb, scheduled_for timestamptz, start_at timestamptz) returns jsonb
language sql stable as $function$
    select entry
        || jsonb_build_object(
            'options', coalesce(nullif(entry -> 'options', 'null'), '{}') || jsonb_build_object('scheduled_for', scheduled_for)
        )
        || case when start_at > statement_timestamp() then jsonb_build_object('available_at', start_at) else '{}' end
$function$;

-- Create an occurrence that is a run group, whole or not at all. Its name says whose it is and for when; and by the end of
-- the schedule's id which one of that name, since another may have been deleted that had the same ticks.
create function pgbroker.open_occurrence_1(occurrence pgbroker.occurrence_1) returns pgbroker.occurrence_1
language plpgsql volatile as $function$
declare
    group_name constant text := format(
        '%s:%s:%s',
        coalesce(occurrence.name, 'schedule'),
        to_char(
            occurrence.scheduled_for at time zone 'UTC',
            case
                when occurrence.scheduled_for = date_trunc('second', occurrence.scheduled_for) then 'YYYY-MM-DD"T"HH24:MI:SS"Z"'
                else 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
            end
        ),
        right(occurrence.schedule_id::text, 12)
    );
    refused record;
    code text;
begin
    begin
        occurrence.run_group_id := pgbroker.open_group_1(group_name, coalesce(nullif(occurrence.template -> 'group', 'null'), '{}'));
        select answer.outcome, answer.detail, answer.ordinal into refused
        from pgbroker.enqueue_many_1(
            (
                select jsonb_agg(
                    pgbroker.occurrence_entry_1(
                        entry,
                        occurrence.scheduled_for,
                        -- What waits for others starts when they are over.
                        case when coalesce(nullif(nullif(entry -> 'depends_on', 'null'), '[]'), 'null') = 'null' then occurrence.start_at end
                    )
                    || jsonb_build_object('group', group_name)
                    order by place
                )
                from jsonb_array_elements(occurrence.template -> 'jobs') with ordinality as each (entry, place)
            )
        ) as answer
        where answer.outcome <> 'created'
        order by answer.ordinal
        limit 1;
        if found then
            raise exception '%', format('job %s: %s', refused.ordinal, coalesce(refused.detail, refused.outcome))
                using errcode = 'PB001', hint = refused.outcome;
        end if;
        perform pgbroker.seal_group_1(occurrence.run_group_id);
        occurrence.state := 'created';
    exception when others then
        if pgbroker.is_passing_1(sqlstate) then
            raise;
        end if;
        get stacked diagnostics code = pg_exception_hint;
        occurrence.state := 'failed';
        occurrence.run_group_id := null;
        occurrence.error_code := case when sqlstate = 'PB001' then code else 'enqueue_failed' end;
        occurrence.error := left(sqlerrm, 1000);
    end;
    return occurrence;
end
$function$;

-- Say what keeps a template from being created in the session's tenant, by the rules of every enqueue: its jobs are made,
-- and undone at once. Both are null when nothing does.
create function pgbroker.template_misfit_1(template jsonb, out error_code text, out error text)
language plpgsql volatile as $function$
declare
    tried pgbroker.occurrence_1;
begin
    tried.schedule_id := pgbroker.uuid7_1();
    tried.scheduled_for := statement_timestamp();
    tried.template := template;
    begin
        if jsonb_array_length(template -> 'jobs') = 1 and not template -> 'jobs' -> 0 ? 'name' then
            select
                case when answer.outcome <> 'created' then answer.outcome end,
                case when answer.outcome <> 'created' then coalesce(answer.detail, answer.outcome) end
            into tried.error_code, tried.error
            from pgbroker.enqueue_each_1(
                jsonb_build_array(pgbroker.occurrence_entry_1(template -> 'jobs' -> 0, tried.scheduled_for, null))
            ) as answer;
        else
            tried := pgbroker.open_occurrence_1(tried);
        end if;
        raise exception 'pgbroker: undo what was tried' using errcode = 'PB009';
    exception when sqlstate 'PB009' then
        error_code := tried.error_code;
        error := tried.error;
    end;
end
$function$;

-- Cancel what lives of some schedules of one tenant, in whose place the next occurrence comes.
create function pgbroker.cancel_runs_1(schedules uuid[]) returns void
language plpgsql volatile
    set enable_seqscan = off
as $function$
declare
    jobs uuid[];
    groups uuid[];
    each_group uuid;
    is_left boolean;
begin
    select array_agg(run.job_id) filter (where run.job_id is not null), array_agg(run.run_group_id) filter (where run.run_group_id is not null)
    into jobs, groups
    from unnest(schedules) as each (id)
    cross join lateral pgbroker.live_runs_1(each.id) as run;

    perform pgbroker.cancel_jobs_1(jobs, 'the next occurrence of its schedule has come', 'schedule');
    foreach each_group in array coalesce(groups, '{}') loop
        for round in 1 .. 20 loop
            select answer.is_left into is_left
            from pgbroker.cancel_group_1(each_group, 'the next occurrence of its schedule has come', 'schedule', 500) as answer;
            exit when is_left is not true;
        end loop;
    end loop;
end
$function$;
