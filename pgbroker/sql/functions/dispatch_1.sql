-- What the decisions of a scheduler do, all of a page in one call.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Do what was decided about schedules, and return what became of each tick of theirs: created, skipped, buffered,
-- failed, or duplicate where it had been created before. A schedule that is not as it was when the decision was made
-- comes back with one row of state stale, and nothing about it is changed.
--
-- A decision has id and kind. Of kind tick: next_run_at and revision as they were (expected, revision), then what they
-- become: next_run_at, watermark, zone_rules, resume (the pause is over), disable (with the reason), buffer (a tick that
-- waits), release (the buffered one is among those to create, or to skip), cancel (what lives gives way), skip (ticks), missed
-- (ticks that will never be created: count, first and last, which becomes one row of the history). Kinds run_now and
-- backfill only create. create has pairs: the tick, and when its job may start, which is null for at once.
--
-- What cannot be created is recorded and sinks nothing else. patient: wait for rows that somebody holds; otherwise those
-- schedules are left out, and have no row at all.
create function pgbroker.dispatch_1(decisions jsonb, patient boolean)
returns table (
    schedule_id uuid, scheduled_for timestamptz, state text, job_id uuid, run_group_id uuid,
    lateness_seconds double precision, error_code text, error text, queues text[]
)
language plpgsql volatile
    set enable_seqscan = off
as $function$
#variable_conflict use_column
declare
    scope_before constant text := coalesce(current_setting('pgbroker.scope', true), '');
    tenant_before constant text := coalesce(current_setting('pgbroker.tenant_id', true), '');
    wanted constant uuid[] := array(select (decision ->> 'id')::uuid from jsonb_array_elements(decisions) as decision);
    locked uuid[];
    held uuid[];
    each_tenant record;
    single pgbroker.occurrence_1[];
    places int[];
    jobs uuid[];
    made pgbroker.occurrence_1[] := '{}';
    -- Those whose occurrences must not overlap.
    bounded uuid[];
begin
    -- In the order of ids, so that two that do the same do not wait for each other in a circle.
    if patient then
        locked := array(
            select schedule.id from pgbroker.schedule where schedule.id = any (wanted) order by schedule.id for no key update
        );
    else
        locked := array(
            select schedule.id
            from pgbroker.schedule
            where schedule.id = any (wanted)
            order by schedule.id
            for no key update skip locked
        );
    end if;
    -- In a statement of its own, which sees what whoever held the rows before has left.
    held := array(
        select schedule.id
        from jsonb_to_recordset(decisions) as decision (id uuid, kind text, expected timestamptz, revision bigint)
        join pgbroker.schedule on schedule.id = any (array[decision.id])
        where (decision.id in (select unnest(locked))) is true
          and (
              decision.kind <> 'tick'
              or schedule.revision = decision.revision and schedule.next_run_at is not distinct from decision.expected
          )
    );
    return query
        select each.id, null::timestamptz, 'stale'::text, null::uuid, null::uuid, null::double precision, null::text, null::text, null::text[]
        from unnest(locked) as each (id)
        where (each.id in (select unnest(held))) is not true;

    for each_tenant in
        select
            schedule.tenant_id,
            array_agg(
                row(
                    schedule.id, (pair ->> 0)::timestamptz, (pair ->> 1)::timestamptz, decision.kind, schedule.tenant_id,
                    schedule.name, schedule.template,
                    case
                        when exists (
                            select
                            from pgbroker.schedule_run as run
                            where run.schedule_id = any (array[schedule.id])
                              and run.scheduled_for = any (array[(pair ->> 0)::timestamptz])
                              and (
                                  run.state = 'created'
                                  or run.state = 'buffered' and (run.scheduled_for = schedule.buffered_for and decision.release) is not true
                              )
                        ) then 'duplicate'
                    end,
                    null, null, null, null
                )::pgbroker.occurrence_1
                order by (pair ->> 0)::timestamptz, schedule.id
            ) filter (where pair is not null) as occurrences,
            array_agg(distinct schedule.id) filter (where decision.cancel) as cancelling
        from jsonb_to_recordset(decisions) as decision (id uuid, kind text, release boolean, cancel boolean, "create" jsonb)
        join pgbroker.schedule on schedule.id = any (array[decision.id])
        left join lateral jsonb_array_elements(decision."create") as pair on true
        where (decision.id in (select unnest(held))) is true
        group by schedule.tenant_id
        order by schedule.tenant_id
    loop
        perform set_config('pgbroker.scope', '', true), set_config('pgbroker.tenant_id', each_tenant.tenant_id, true);
        if each_tenant.cancelling is not null then
            perform pgbroker.cancel_runs_1(each_tenant.cancelling);
        end if;
        single := array(
            select occurrence
            from unnest(each_tenant.occurrences) as occurrence
            where occurrence.state is null
              and jsonb_array_length(occurrence.template -> 'jobs') = 1
              and (occurrence.template -> 'jobs' -> 0 ? 'name') is not true
            order by occurrence.scheduled_for, occurrence.schedule_id
        );
        select plain.places, plain.jobs
        into places, jobs
        from pgbroker.enqueue_plain_occurrences_1(single) as plain;
        if places is not null then
            made := made || array(
                select row(
                    asked.schedule_id, asked.scheduled_for, asked.start_at, asked.kind, asked.tenant_id, asked.name, null,
                    'created', each.job_id, null, null, null
                )::pgbroker.occurrence_1
                from unnest(places, jobs) as each (place, job_id)
                cross join lateral (select (single[each.place]).*) as asked
            );
            single := array(
                select single[place]
                from generate_series(1, cardinality(single)) as place
                where (place in (select unnest(places))) is not true
                order by place
            );
        end if;
        if cardinality(single) > 0 then
            made := made || array(
                select row(
                    asked.schedule_id, asked.scheduled_for, asked.start_at, asked.kind, asked.tenant_id, asked.name, null,
                    case when answer.outcome in ('created', 'replaced', 'existing') then 'created' else 'failed' end,
                    case when answer.outcome in ('created', 'replaced', 'existing') then answer.job_id end,
                    null,
                    case when answer.outcome not in ('created', 'replaced', 'existing') then answer.outcome end,
                    case when answer.outcome not in ('created', 'replaced', 'existing') then left(answer.detail, 1000) end
                )::pgbroker.occurrence_1
                from pgbroker.enqueue_each_1(
                    (
                        select jsonb_agg(
                            pgbroker.occurrence_entry_1(each.template -> 'jobs' -> 0, each.scheduled_for, each.start_at)
                            order by each.ordinality
                        )
                        from unnest(single) with ordinality as each
                    )
                ) as answer
                cross join lateral (select (single[answer.ordinal]).*) as asked
            );
        end if;
        made := made || array(
            select case
                when occurrence.state is null then pgbroker.open_occurrence_1(
                    row(
                        occurrence.schedule_id, occurrence.scheduled_for, occurrence.start_at, occurrence.kind, occurrence.tenant_id,
                        occurrence.name, occurrence.template, null, null, null, null, null
                    )::pgbroker.occurrence_1
                )
                else row(
                    occurrence.schedule_id, occurrence.scheduled_for, null, occurrence.kind, occurrence.tenant_id,
                    occurrence.name, null, occurrence.state, null, null, null, null
                )::pgbroker.occurrence_1
            end
            from unnest(each_tenant.occurrences) as occurrence
            where occurrence.state is not null
               or jsonb_array_length(occurrence.template -> 'jobs') <> 1
               or occurrence.template -> 'jobs' -> 0 ? 'name'
            order by occurrence.scheduled_for, occurrence.schedule_id
        );
    end loop;
    perform set_config('pgbroker.scope', scope_before, true), set_config('pgbroker.tenant_id', tenant_before, true);

    -- What was decided not to create now, or not at all.
    if decisions @? '$[*].skip[*]' then
        made := made || array(
            select row(
                schedule.id, (tick #>> '{}')::timestamptz, null, 'tick', schedule.tenant_id, schedule.name, null,
                'skipped', null, null, 'overlap', null
            )::pgbroker.occurrence_1
            from jsonb_to_recordset(decisions) as decision (id uuid, skip jsonb)
            join pgbroker.schedule on schedule.id = any (array[decision.id])
            cross join lateral jsonb_array_elements(decision.skip) as tick
            where (decision.id in (select unnest(held))) is true
        );
    end if;
    if decisions @? '$[*].buffer ? (@ != null)' then
        made := made || array(
            select row(
                schedule.id, decision.buffer, null, 'tick', schedule.tenant_id, schedule.name, null, 'buffered', null, null, null, null
            )::pgbroker.occurrence_1
            from jsonb_to_recordset(decisions) as decision (id uuid, buffer timestamptz)
            join pgbroker.schedule on schedule.id = any (array[decision.id])
            where decision.buffer is not null
              and (decision.id in (select unnest(held))) is true
        );
    end if;

    insert into pgbroker.schedule_run as known (
        schedule_id, scheduled_for, tenant_id, kind, state, job_id, run_group_id, lateness_seconds, error_code, error
    )
    select
        each.schedule_id,
        each.scheduled_for,
        each.tenant_id,
        each.kind,
        each.state,
        each.job_id,
        each.run_group_id,
        case
            when each.kind = 'tick' and each.state = 'created'
                then extract(epoch from statement_timestamp() - each.scheduled_for)::double precision
        end,
        each.error_code,
        each.error
    from unnest(made) as each
    where each.state <> 'duplicate'
    on conflict on constraint schedule_run_pkey do update
    set kind = excluded.kind,
        state = excluded.state,
        job_id = excluded.job_id,
        run_group_id = excluded.run_group_id,
        created_at = statement_timestamp(),
        lateness_seconds = excluded.lateness_seconds,
        error_code = excluded.error_code,
        error = excluded.error
    where excluded.state in ('created', 'failed')
       or known.state not in ('created', 'buffered')
       or known.state = 'buffered' and excluded.state = 'skipped' and (
           known.schedule_id in (
               select decision.id
               from jsonb_to_recordset(decisions) as decision (id uuid, release boolean)
               where decision.release
           )
       ) is true;

    if decisions @? '$[*].missed' then
        -- One row for them all: a stop of months may have missed a million.
        insert into pgbroker.schedule_run (schedule_id, scheduled_for, tenant_id, kind, state, error)
        select
            schedule.id,
            (decision.missed ->> 'last')::timestamptz,
            schedule.tenant_id,
            'tick',
            'missed',
            case
                when decision.missed ->> 'count' <> '1' then format(
                    '%s ticks from %s to this one',
                    decision.missed ->> 'count',
                    to_char((decision.missed ->> 'first')::timestamptz at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                )
            end
        from jsonb_to_recordset(decisions) as decision (id uuid, missed jsonb)
        join pgbroker.schedule on schedule.id = any (array[decision.id])
        where decision.missed is not null
          and (decision.id in (select unnest(held))) is true
        -- A backfill may have made up for it.
        on conflict on constraint schedule_run_pkey do nothing;
    end if;

    update pgbroker.schedule
    set next_run_at = case when decision.kind = 'tick' then decision.next_run_at else schedule.next_run_at end,
        watermark = coalesce(decision.watermark, schedule.watermark),
        zone_rules = coalesce(decision.zone_rules, schedule.zone_rules),
        buffered_for = case
            when decision.buffer is not null then decision.buffer
            when decision.release then null
            else schedule.buffered_for
        end,
        paused_at = case when decision.resume then null else schedule.paused_at end,
        paused_until = case when decision.resume then null else schedule.paused_until end,
        paused_by = case when decision.resume then '' else schedule.paused_by end,
        pause_reason = case when decision.resume then '' else schedule.pause_reason end,
        enabled = schedule.enabled and decision.disable is null,
        disabled_reason = coalesce(left(decision.disable, 1000), schedule.disabled_reason),
        revision = schedule.revision + (decision.kind = 'run_now' or decision.resume is true or decision.disable is not null)::int,
        last_dispatched_for = coalesce(became.last_for, schedule.last_dispatched_for),
        last_dispatched_at = case when became.last_for is not null then statement_timestamp() else schedule.last_dispatched_at end,
        -- In a row: an occurrence that was created ends the count.
        failure_count = case
            when became.failed > 0 then schedule.failure_count + became.failed
            else schedule.failure_count * (became.last_for is null)::int
        end,
        failed_at = case when became.failed > 0 then statement_timestamp() else schedule.failed_at end,
        error_code = case
            when became.failed > 0 then became.failure[1]
            when became.last_for is null then schedule.error_code
        end,
        error = case
            when became.failed > 0 then became.failure[2]
            when became.last_for is null then schedule.error
        end
    from jsonb_to_recordset(decisions) as decision (
        id uuid, kind text, next_run_at timestamptz, watermark timestamptz, zone_rules text, resume boolean, disable text,
        buffer timestamptz, release boolean
    )
    left join (
        select
            each.schedule_id,
            max(each.scheduled_for) filter (where each.state = 'created' and each.kind = 'tick') as last_for,
            count(*) filter (where each.state = 'failed') as failed,
            (array_agg(array[each.error_code, each.error] order by each.scheduled_for desc) filter (where each.state = 'failed'))[1:1] as failures
        from unnest(made) as each
        group by each.schedule_id
    ) as grouped on grouped.schedule_id = decision.id
    cross join lateral (
        select grouped.last_for, coalesce(grouped.failed, 0)::int as failed, array[grouped.failures[1][1], grouped.failures[1][2]] as failure
    ) as became
    where schedule.id = any (array[decision.id])
      and (decision.id in (select unnest(held))) is true;

    -- Last: whoever retries a job, and waits for the rows that this locks, is waited for by nothing after it.
    bounded := array(
        select schedule.id
        from pgbroker.schedule
        where schedule.id = any (held)
          and (schedule.overlap <> 'allow' or schedule.buffered_for is not null)
    );
    if cardinality(bounded) > 0 then
        perform pgbroker.note_over_1(bounded);
    end if;

    return query
        select
            each.schedule_id,
            each.scheduled_for,
            each.state,
            each.job_id,
            each.run_group_id,
            case when each.state = 'created' then extract(epoch from statement_timestamp() - each.scheduled_for)::double precision end,
            each.error_code,
            each.error,
            case
                when each.job_id is not null then array(
                    select queue.name
                    from pgbroker.job
                    join pgbroker.queue on queue.id = job.queue_id
                    where job.id = any (array[each.job_id]) and job.status + 0 = 2 /* ready */
                )
                when each.run_group_id is not null then array(
                    select distinct queue.name
                    from pgbroker.job
                    join pgbroker.queue on queue.id = job.queue_id
                    where job.run_group_id = any (array[each.run_group_id]) and job.status + 0 = 2 /* ready */
                )
                else '{}'
            end
        from unnest(made) as each;
end
$function$;
