-- Read what decides whether a job can run now.
--
--   job_id  uuid      the job
--   ageing  interval  what one step of priority is worth in waiting, where the queue does not say
--   limit   bigint    most prerequisites, references and pauses to name
--   bound   bigint    count no further
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   one when this tenant has the job: the row itself, its worker, why it was ended or blocked, its last attempt,
--         how often no worker knew its type, the pauses that hold it, what it still waits for, what there is by now of what
--         did not come in time and whether the job would wait for itself then, which workers serve its queue, and how many
--         ready jobs go before it, as far as the scope shows them.
-- Locks:  none.
-- Index:  job_pkey, job_dependency_open, job_group, job_claim, execution_job.
--
-- status + 0: the members of a group are not looked up by an index of a status.
--
-- Only what the status asks for is looked up. A prerequisite that is not this tenant's, whatever a row may claim, is
-- counted and not named.
with asked as materialized (
    select
        job.*,
        queue.name as queue,
        job_type.name as job_type,
        coalesce(queue.ageing_seconds * interval '1 second', %(ageing)s::interval) as ageing
    from pgbroker.job
    join pgbroker.queue on queue.id = job.queue_id
    join pgbroker.job_type on job_type.id = job.job_type_id
    where job.id = %(job_id)s
),
-- Of one that is blocked, or was cancelled because of them: only those that ended badly.
holding as materialized (
    select edge.prerequisite_id, edge.kind, edge.on_failure, edge.outcome, asked.tenant_id
    from asked
    join pgbroker.job_dependency as edge on edge.dependent_id = any (array[asked.id])
    where edge.satisfied_at is null
      and edge.tenant_id = asked.tenant_id
      and (asked.status = 1 /* waiting */ or asked.status in (5 /* blocked */, 13 /* cancelled */) and edge.outcome > 0)
    order by edge.outcome desc, edge.prerequisite_id
    limit %(bound)s
),
named as materialized (
    select
        found.*,
        holding.on_failure,
        holding.outcome
    from holding
    cross join lateral (
        select
            prerequisite.id,
            'job' as kind,
            job_type.name,
            prerequisite.name as job_name,
            (select run_group.name from pgbroker.run_group where run_group.id = prerequisite.run_group_id) as group_name,
            prerequisite.status
        from pgbroker.job as prerequisite
        join pgbroker.job_type on job_type.id = prerequisite.job_type_id
        where prerequisite.id = any (array[holding.prerequisite_id])
          and prerequisite.tenant_id || '' = holding.tenant_id
        union all
        select run_group.id, 'group', run_group.name, null, null, run_group.state
        from pgbroker.run_group
        where run_group.id = any (array[holding.prerequisite_id])
          and run_group.tenant_id = holding.tenant_id
    ) as found
    order by holding.outcome desc, found.id
    limit %(limit)s
)
select
    asked.id as job_id,
    asked.status,
    asked.queue,
    asked.job_type,
    asked.tenant_id,
    statement_timestamp() as database_time,
    asked.available_at,
    asked.deadline_at,
    asked.leased_at,
    asked.lease_expires_at,
    asked.cancel_requested_at,
    asked.finished_at,
    asked.attempt_count,
    asked.max_attempts,
    asked.worker_id,
    (
        select concat_ws(', ', worker.name, nullif(worker.host || ':' || worker.pid, worker.name))
        from pgbroker.worker
        where worker.id = asked.worker_id
    ) as worker,
    job_state.reason_code,
    job_state.reason,
    job_state.by,
    job_state.cause_id,
    (
        select jsonb_build_object('job_type', job_type.name, 'status', cause.status, 'reason_code', why.reason_code)
        from pgbroker.job as cause
        join pgbroker.job_type on job_type.id = cause.job_type_id
        left join pgbroker.job_state as why on why.job_id = cause.id
        where cause.id = any (array[job_state.cause_id])
          and cause.tenant_id || '' = asked.tenant_id
    ) as cause,
    last.state as last_state,
    last.error_code as last_error_code,
    unknown.times as unknown_times,
    unknown.since as unknown_since,
    (
        select jsonb_agg(held.said order by held.paused_at)
        from (
            select
                pause.paused_at,
                jsonb_build_object(
                    'kind', pause.kind, 'since', pause.paused_at, 'until', pause.until, 'by', pause.by,
                    'reason', pause.reason
                ) as said
            from pgbroker.pause
            where asked.status in (0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 4 /* suspended */, 5 /* blocked */)
              and (pause.until is null or pause.until > statement_timestamp())
              and (pause.queue_id is null or pause.queue_id = asked.queue_id)
              and (pause.job_type_id is null or pause.job_type_id = asked.job_type_id)
              and (pause.tenant is null or pause.tenant = asked.tenant_id)
            order by pause.paused_at
            limit %(limit)s
        ) as held
    ) as pauses,
    (select count(*) from holding) as prerequisite_count,
    (
        select jsonb_agg(
            jsonb_build_object(
                'id', named.id,
                'kind', named.kind,
                'name', named.name,
                'job_name', named.job_name,
                'group_name', named.group_name,
                'status', named.status,
                'on_failure', named.on_failure,
                'outcome', named.outcome,
                'members', progress.members,
                'live', progress.live,
                'bad', progress.bad
            )
            order by named.outcome desc, named.id
        )
        from named
        left join lateral (
            select
                (
                    select count(*)
                    from (
                        select from pgbroker.job as member where member.run_group_id = named.id limit %(bound)s
                    ) as counted
                ) as members,
                (
                    select count(*)
                    from (
                        select
                        from pgbroker.job as member
                        where member.run_group_id = named.id
                          and member.status + 0 in (
                              0 /* scheduled */, 1 /* waiting */, 2 /* ready */, 3 /* running */, 4 /* suspended */,
                              5 /* blocked */
                          )
                        limit %(bound)s
                    ) as counted
                ) as live,
                (
                    select count(*)
                    from (
                        select
                        from pgbroker.job as member
                        where member.run_group_id = named.id
                          and member.status + 0 in (11 /* failed */, 12 /* dead_letter */, 13 /* cancelled */)
                        limit %(bound)s
                    ) as counted
                ) as bad
        ) as progress on named.kind = 'group'
    ) as prerequisites,
    (
        select jsonb_agg(
            jsonb_build_object(
                'group_name', deferred.group_name, 'job_name', deferred.job_name, 'deadline', deferred.deadline_at
            )
            order by deferred.deadline_at, deferred.id
        )
        from (
            select deferred_reference.*
            from pgbroker.deferred_reference
            where asked.status = 1 /* waiting */
              and deferred_reference.dependent_id = asked.id
            order by deferred_reference.deadline_at, deferred_reference.id
            limit %(limit)s
        ) as deferred
    ) as deferred,
    case when asked.status in (5 /* blocked */, 13 /* cancelled */) and job_state.reason_code = 'reference_expired' then (
        select jsonb_agg(
            jsonb_build_object(
                'words', expired.words,
                'id', expired.named_id,
                'outcome', expired.outcome,
                'circular', pgbroker.closes_cycle_1(asked.id, expired.named_id)
            )
            order by expired.words
        )
        from (
            select reference.*
            from pgbroker.expired_references_1(asked.id) as reference
            order by reference.words
            limit %(limit)s
        ) as expired
    ) end as expired,
    serving.workers,
    serving.draining,
    serving.slots,
    serving.busy,
    case when asked.status = 2 /* ready */ then (
        select count(*)
        from (
            select
            from (
                select distinct queue_priority.priority
                from pgbroker.queue_priority
                where queue_priority.queue_id = asked.queue_id
            ) as lane
            cross join lateral (
                select
                from pgbroker.job as other
                where other.queue_id = asked.queue_id
                  and other.status = 2 /* ready */
                  and other.priority = lane.priority
                  and (other.ready_at, other.id)
                    < (asked.ready_at + (lane.priority - asked.priority) * asked.ageing, asked.id)
                  and (other.deadline_at is null or other.deadline_at > statement_timestamp())
                  and not exists (
                      select
                      from pgbroker.pause
                      where (pause.until is null or pause.until > statement_timestamp())
                        and (pause.queue_id is null or pause.queue_id = other.queue_id)
                        and (pause.job_type_id is null or pause.job_type_id = other.job_type_id)
                        and (pause.tenant is null or pause.tenant = other.tenant_id)
                  )
                order by other.ready_at, other.id
                limit %(bound)s
            ) as before
            limit %(bound)s
        ) as counted
    ) end as ahead,
    coalesce(current_setting('pgbroker.scope', true) = 'all', false) as sees_all
from asked
left join pgbroker.job_state on job_state.job_id = asked.id
left join lateral (
    select execution.state, execution.error_code
    from pgbroker.execution
    where execution.job_id = asked.id
    order by execution.attempt_no desc, execution.completed_at desc
    limit 1
) as last on true
left join lateral (
    select count(*) as times, min(execution.completed_at) as since
    from pgbroker.execution
    where execution.job_id = asked.id
      and execution.error_code = 'unknown_job_type'
      and last.error_code = 'unknown_job_type'
) as unknown on true
left join lateral (
    select
        count(*) filter (where worker.draining_at is null) as workers,
        count(*) filter (where worker.draining_at is not null) as draining,
        coalesce(sum(worker.slots) filter (where worker.draining_at is null), 0) as slots,
        coalesce(sum(worker.running + worker.held) filter (where worker.draining_at is null), 0) as busy
    from pgbroker.worker
    where asked.status in (0 /* scheduled */, 2 /* ready */)
      and worker.stopped_at is null
      and worker.expires_at > statement_timestamp()
      and asked.queue = any (worker.queues)
) as serving on true
