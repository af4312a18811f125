-- Record how a batch of attempts of one worker ended, and decide where their jobs go.
--
--   worker_id   uuid                who held the leases
--   job_ids     uuid[]              the jobs, in ascending order
--   tokens      bigint[]            ... the lease token of each attempt
--   states      smallint[]          ... how the attempt ended (AttemptState)
--   started     timestamptz[]       ... when its handler started
--   seconds     double precision[]  ... and how long it ran
--   delays      interval[]          ... the wait before a retry or after a snooze
--   permanent   boolean[]           ... true: no retry, failed
--   dead        boolean[]           ... true: no retry, dead letter
--   codes       text[]              ... error code
--   errors      text[]              ... error text
--   tracebacks  text[]              ... traceback
--   results     text[]              ... result as JSON text, or the stub of a body
--   bodies      text[]              ... name of a body that holds the result
--   logs        text[]              ... tail of the log
--   max_crashes  int                crashes after which a job is a dead letter
--
-- Scope:  all
-- Plan:   hot, kept
-- Rows:   number, job_id, lease_token, status. At least one: number is how many attempts were still their
--         worker's. Where that is all of them, the rest tells of those alone whose jobs are not completed now;
--         otherwise of all that were, and an id that does not come back was lost: nothing about it changed.
-- Locks:  job rows, in id order.
-- Index:  job_pkey.
--
-- A short array reads as null for the rest, so what nobody needs is sent as null. Every predicate of the
-- fence is a join clause against the outcome (worker and status too): a constant on the job makes the
-- planner expect one row and compare all with all. status + 0, so that the lease index is no way in. An equality
-- of ids would let it read the whole primary key in order, where statistics say that the table is empty; `any` of
-- one is a look-up all the same.
--
-- running -> completed, scheduled (retry, snooze), failed, dead_letter, cancelled. A cancel request wins over
-- whatever the handler then reports; its execution keeps what happened. A crash here is that of a child process.
with outcome as materialized (
    select
        entry.*,
        statement_timestamp() + coalesce(entry.delay, '0') as next_at,
        %(worker_id)s::uuid as worker_id,
        3::smallint as running
    from unnest(
        %(job_ids)s::uuid[],
        %(tokens)s::bigint[],
        %(states)s::smallint[],
        %(started)s::timestamptz[],
        %(seconds)s::double precision[],
        %(delays)s::interval[],
        %(permanent)s::boolean[],
        %(dead)s::boolean[],
        %(codes)s::text[],
        %(errors)s::text[],
        %(tracebacks)s::text[],
        %(results)s::text[],
        %(bodies)s::text[],
        %(logs)s::text[]
    ) as entry (
        job_id, lease_token, state, started_at, seconds, delay, permanent, dead, error_code, error,
        traceback, result, result_body, log_tail
    )
),
held as materialized (
    select
        job.id,
        outcome.*,
        job.deadline_at < outcome.next_at as too_late,
        extract(epoch from outcome.started_at - job.ready_at)::double precision as waited,
        case
            when job.cancel_requested_at is not null then 13 /* cancelled */
            when outcome.state = 1 /* completed */ then 10 /* completed */
            when outcome.state = 8 /* snoozed */ then
                case when job.deadline_at < outcome.next_at then 11 /* failed */ else 0 /* scheduled */ end
            when outcome.permanent then 11 /* failed */
            when outcome.dead then 12 /* dead_letter */
            when outcome.state = 6 /* crashed */ and job.crash_count + 1 >= %(max_crashes)s
                then 12 /* dead_letter */
            when job.attempt_count >= job.max_attempts then 12 /* dead_letter */
            when job.deadline_at < outcome.next_at then 11 /* failed */
            else 0 /* scheduled */
        end as next_status
    from outcome
    join pgbroker.job
        on job.id = any (array[outcome.job_id])
        and job.lease_token = outcome.lease_token
        and job.worker_id = outcome.worker_id
        and job.status + 0 = outcome.running
    order by outcome.job_id
    for no key update of job
),
settled as (
    update pgbroker.job
    set status = held.next_status,
        available_at = case when held.next_status = 0 /* scheduled */ then held.next_at end,
        finished_at = case when held.next_status >= 10 then statement_timestamp() end,
        max_attempts = max_attempts + (held.state = 8 /* snoozed */ and held.next_status = 0 /* scheduled */)::int,
        crash_count = crash_count + (held.state = 6 /* crashed */)::int,
        worker_id = null,
        lease_expires_at = null
    from held
    where job.id = any (array[held.id])
    returning held.*, job.tenant_id, job.queue_id, job.job_type_id, job.attempt_count, job.status
),
ended as (
    insert into pgbroker.execution (
        job_id, tenant_id, attempt_no, state, worker_id, started_at, duration_seconds, error_code, error,
        traceback, result, result_body, log_tail
    )
    select
        id, tenant_id, attempt_count, state, worker_id, started_at, seconds, error_code, error, traceback,
        result::jsonb, result_body, log_tail
    from settled
),
explained as (
    insert into pgbroker.job_state (job_id, tenant_id, reason_code, reason)
    select id, tenant_id, 'deadline_exceeded', 'the next attempt would have begun after the deadline'
    from settled
    where too_late and status = 11 /* failed */ and permanent is not true
    on conflict (job_id) do update
    set reason_code = excluded.reason_code,
        reason = excluded.reason,
        by = '',
        changed_at = statement_timestamp()
),
counted as (
    insert into pgbroker.job_counter as was (
        job_type_id, queue_id, worker_id, bucket, done, retried, snoozed, failed, dead, cancelled,
        run_seconds, wait_seconds
    )
    select
        job_type_id,
        queue_id,
        worker_id,
        date_trunc('minute', statement_timestamp()),
        count(*) filter (where status = 10 /* completed */),
        count(*) filter (where status = 0 /* scheduled */ and state <> 8 /* snoozed */),
        count(*) filter (where status = 0 /* scheduled */ and state = 8 /* snoozed */),
        count(*) filter (where status = 11 /* failed */),
        count(*) filter (where status = 12 /* dead_letter */),
        count(*) filter (where status = 13 /* cancelled */),
        coalesce(sum(seconds), 0),
        coalesce(sum(greatest(waited, 0)), 0)
    from settled
    group by job_type_id, queue_id, worker_id
    order by job_type_id, queue_id
    on conflict (job_type_id, queue_id, worker_id, bucket, fold) do update
    set done = was.done + excluded.done,
        retried = was.retried + excluded.retried,
        snoozed = was.snoozed + excluded.snoozed,
        failed = was.failed + excluded.failed,
        dead = was.dead + excluded.dead,
        cancelled = was.cancelled + excluded.cancelled,
        run_seconds = was.run_seconds + excluded.run_seconds,
        wait_seconds = was.wait_seconds + excluded.wait_seconds
)
select total.number, settled.id as job_id, settled.lease_token, settled.status
from (select count(*) as number from settled) as total
left join settled
    on settled.status <> 10 /* completed */
    or total.number < cardinality(%(job_ids)s::uuid[])
