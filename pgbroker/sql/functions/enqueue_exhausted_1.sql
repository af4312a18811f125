-- What happens when a job becomes a dead letter that has an on_exhausted: another job is enqueued, in the same commit.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Enqueue, for jobs that have just become dead letters, the jobs that were asked for in that case. Called by the
-- trigger of whatever statement ended them, whoever made it: settle, reap, an operator.
--
-- The option of the job counts, else the declaration of its type as it is now; a null in the options is none at
-- all, and that is what the new jobs get: one that dies in its turn brings forth no other. They belong to the
-- tenant of the dead one, take everything else from their own declaration, and one argument:
--
--   {"job_id", "job_type", "queue", "attempts", "error_code", "error" (at most 1000 characters), "died_at"}
--
-- It runs within statements whose plans are kept (decision 0017); its own are made for the rows that are there.
--
-- An event (21) tells which job was made, or why none was. What goes wrong here must not keep a batch from being
-- settled or reaped, for ever: it is undone, and told as well.
create function pgbroker.enqueue_exhausted_1(dead uuid[]) returns void
language plpgsql volatile set plan_cache_mode = force_custom_plan as $function$
declare
    tenant_before constant text := coalesce(current_setting('pgbroker.tenant_id', true), '');
    death record;
    made uuid[];
begin
    for death in
        select
            job.tenant_id as tenant,
            array_agg(job.id order by job.id) as ids,
            jsonb_agg(
                jsonb_build_object(
                    'job_type', wanted.name,
                    'options', jsonb_build_object('on_exhausted', null),
                    'principal', payload.principal,
                    'correlation_id', payload.correlation_id,
                    'traceparent', payload.traceparent,
                    'args', jsonb_build_object(
                        'v', 1,
                        'args', jsonb_build_array(
                            jsonb_build_object(
                                'job_id', job.id,
                                'job_type', job_type.name,
                                'queue', queue.name,
                                'attempts', job.attempt_count,
                                'error_code', ended.error_code,
                                'error', left(ended.error, 1000),
                                'died_at', job.finished_at
                            )
                        ),
                        'kwargs', jsonb_build_object()
                    )
                )
                order by job.id
            ) as jobs
        from unnest(dead) as each (id)
        join pgbroker.job on job.id = any (array[each.id])
        join pgbroker.job_payload as payload on payload.job_id = any (array[each.id])
        join pgbroker.queue on queue.id = job.queue_id
        join pgbroker.job_type on job_type.id = job.job_type_id
        cross join lateral (
            select case
                when payload.options ? 'on_exhausted' then payload.options ->> 'on_exhausted'
                else job_type.defaults ->> 'on_exhausted'
            end as name
        ) as wanted
        left join lateral (
            select execution.error_code, execution.error
            from pgbroker.execution
            where execution.job_id = job.id
            order by execution.attempt_no desc, execution.completed_at desc
            limit 1
        ) as ended on true
        where wanted.name is not null
        group by job.tenant_id
        order by job.tenant_id
    loop
        begin
            perform set_config('pgbroker.tenant_id', death.tenant, true);
            with answer as materialized (
                select * from pgbroker.enqueue_many_1(death.jobs)
            ),
            told as (
                insert into pgbroker.job_event (job_id, tenant_id, event, metadata)
                select
                    death.ids[ordinal],
                    death.tenant,
                    21 /* on_exhausted */,
                    case
                        when outcome = 'created' then jsonb_build_object(
                            'job_id', job_id,
                            'job_type', death.jobs -> (ordinal - 1) -> 'job_type'
                        )
                        else jsonb_build_object('error_code', outcome, 'error', detail)
                    end
                from answer
            )
            select array_agg(job_id) filter (where outcome = 'created') into made from answer;
            -- Deaths are rare enough for a notification in the transaction itself.
            perform pg_notify('pgbroker', woken.name)
            from pgbroker.queue as woken
            where woken.id in (select job.queue_id from pgbroker.job where job.id = any (made));
        exception when others then
            if pgbroker.is_passing_1(sqlstate) then
                raise;
            end if;
            insert into pgbroker.job_event (job_id, tenant_id, event, metadata)
            select
                id,
                death.tenant,
                21 /* on_exhausted */,
                jsonb_build_object('error_code', 'enqueue_failed', 'error', left(sqlerrm, 1000))
            from unnest(death.ids) as each (id);
        end;
    end loop;
    perform set_config('pgbroker.tenant_id', tenant_before, true);
end
$function$;
