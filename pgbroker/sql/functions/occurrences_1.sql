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

-- The occurrences of a schedule that are not over, among its latest twenty: what was made up for the past runs beside
-- the others, and counts for nothing.
create function pgbroker.live_runs_1(schedule uuid)
returns table (scheduled_for timestamptz, tenant_id text, job_id uuid, run_group_id uuid)
language sql stable as $function$
    select run.scheduled_for, run.tenant_id, run.job_id, run.run_group_id
    from (
        select latest.scheduled_for, latest.tenant_id, latest.job_id, latest.run_group_id
        from pgbroker.schedule_run as latest
        where latest.schedule_id = live_runs_1.schedule
          and latest.state = 'created'
          and latest.kind <> 'backfill'
        order by latest.scheduled_for desc
        limit 20
    ) as run
    where exists (select from pgbroker.job where job.id = any (array[run.job_id]) and job.status + 0 < 10)
       or exists (
           select
           from pgbroker.run_group
           where run_group.id = any (array[run.run_group_id]) and run_group.state + 0 < 10
       )
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

-- Create an occurrence that is a run group, whole or not at all. Its name says whose it is and for when.
create function pgbroker.open_occurrence_1(occurrence pgbroker.occurrence_1) returns pgbroker.occurrence_1
language plpgsql volatile as $function$
declare
    group_name constant text := format(
        'schedule:%s:%s',
        occurrence.schedule_id,
        to_char(
            occurrence.scheduled_for at time zone 'UTC',
            case
                when occurrence.scheduled_for = date_trunc('second', occurrence.scheduled_for) then 'YYYY-MM-DD"T"HH24:MI:SS"Z"'
                else 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
            end
        )
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
