-- Make ended jobs live again: failed, dead_letter, cancelled -> ready, or waiting where prerequisites are not met.
--
--   job_ids   uuid[]  the jobs
--   attempts  int     attempts each may still make; null: as many as were declared for it
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   one per job this tenant has: job_id, outcome (retried, unchanged, key_held_by_newer_job,
--         prerequisite_failed), queue_id, the status from before, and the job that has its key, or the job or group
--         that is in its way, where there is one; and what is still not there of what it waited for by name.
-- Locks:  the idempotency keys, then the job rows, each in order: the order in which enqueue takes them.
-- Index:  job_pkey, idempotency_pkey.
--
-- A job whose idempotency key a newer live job holds is left alone: two jobs would run under one key. So are
-- all but one of several that share a key: the one that holds it, else the youngest, is retried. A key that is
-- taken back is held on this job's own terms: its window began when it was made, and may be over. A deadline
-- that ended a job does not end its retry. A job whose prerequisite has ended badly, and is not retried with it, would
-- end again at once: it is left alone. It comes back by itself when that one is retried. What it waited for by name, and
-- was not there in time, is waited for again, if it is there by now; else the job is left alone as well.
with wanted as materialized (
    select payload.job_id, job.tenant_id, job.job_type_id, payload.idempotency_key
    from pgbroker.job_payload as payload
    join pgbroker.job on job.id = any (array[payload.job_id])
    where payload.job_id = any (%(job_ids)s::uuid[])
),
key_holder as materialized (
    select wanted.job_id, held.job_id as holder_id, held.scope, held.expires_at
    from wanted
    join pgbroker.idempotency as held
        on held.tenant_id = wanted.tenant_id
        and held.job_type_id = wanted.job_type_id
        and held.key = wanted.idempotency_key
    order by held.tenant_id, held.job_type_id, held.key
    for update of held
),
-- The jobs and those ended ones that hold their keys: only a locked row tells whether another retry, which
-- this one waited for, has just revived the holder. A holder that lives is not locked, nobody waits for it.
-- Asked for after the keys are locked: the array makes this step wait for that one. status + 0, so that the index
-- of finished jobs is no way in.
locked as materialized (
    select job.*
    from pgbroker.job
    where job.id = any (
        %(job_ids)s::uuid[] || array(
            select key_holder.holder_id
            from key_holder
            join pgbroker.job as holder on holder.id = any (array[key_holder.holder_id])
            where holder.status + 0 >= 10
        )
    )
    order by job.id
    for no key update
),
judged as (
    select
        job.id,
        job.status,
        job.queue_id,
        case
            -- A holder that is not among the locked lives, or was made while this statement waited for the key.
            when key_holder.holder_id <> job.id
             and pgbroker.holds_key_1(key_holder.scope, key_holder.expires_at, coalesce(newer.status, 2::smallint /* ready */))
                then key_holder.holder_id
        end as newer_id,
        key_holder.holder_id,
        row(wanted.tenant_id, wanted.job_type_id, wanted.idempotency_key) as key,
        wanted.idempotency_key is not null as keyed
    from locked as job
    left join wanted on wanted.job_id = job.id
    left join key_holder on key_holder.job_id = job.id
    left join locked as newer on newer.id = key_holder.holder_id
    where job.id = any (%(job_ids)s::uuid[])
),
ended as materialized (
    select
        id,
        status,
        queue_id,
        coalesce(
            newer_id,
            case when keyed and id <> first_value(id) over same_key then first_value(id) over same_key end
        ) as newer_id,
        row_number() over (order by id) as place,
        pgbroker.is_held_1(id) as waits,
        expired.missing,
        coalesce(expired.barred_by, (
            select edge.prerequisite_id
            from pgbroker.bad_edges_of_1(judged.id) as edge
            cross join lateral pgbroker.prerequisites_1(array[edge.prerequisite_id]) as prerequisite
            where prerequisite.outcome > 10
              and edge.prerequisite_id not in (select locked.id from locked where locked.id = any (%(job_ids)s::uuid[]))
            limit 1
        )) as barred_by
    from judged
    cross join lateral (
        select
            min(reference.words) filter (where reference.named_id is null) as missing,
            (array_agg(reference.named_id order by reference.named_id) filter (
                where reference.outcome > 10
                  and reference.named_id not in (
                      select locked.id from locked where locked.id = any (%(job_ids)s::uuid[])
                  )
            ))[1] as barred_by
        from pgbroker.expired_references_1(judged.id) as reference
    ) as expired
    window same_key as (
        partition by key, status in (11 /* failed */, 12 /* dead_letter */, 13 /* cancelled */), newer_id is null
        order by id = holder_id desc, id desc
    )
),
retried as (
    update pgbroker.job
    set status = case when ended.waits then 1 /* waiting */ else 2 /* ready */ end,
        ready_at = case when not ended.waits then statement_timestamp() + ended.place * interval '1 microsecond' end,
        available_at = null,
        max_attempts = greatest(max_attempts, attempt_count + coalesce(%(attempts)s::int, declared_attempts)),
        cancel_requested_at = null,
        deadline_at = null,
        finished_at = null
    from ended
    where job.id = any (array[ended.id])
      and ended.status in (11 /* failed */, 12 /* dead_letter */, 13 /* cancelled */)
      and ended.newer_id is null
      and ended.barred_by is null
      and ended.missing is null
    returning job.id, job.tenant_id, job.job_type_id, job.priority, job.declared_attempts, job.created_at
),
-- A key that a newer job took and let go of belongs to this one again.
taken_back as (
    update pgbroker.idempotency as held
    set job_id = retried.id,
        digest = sha256(
            convert_to(
                jsonb_build_array(
                    payload.args, retried.priority, retried.declared_attempts, payload.options -> 'backoff'
                )::text,
                'UTF8'
            )
        ),
        scope = coalesce(payload.idempotency_scope, 'held'),
        expires_at = retried.created_at + payload.window_seconds * interval '1 second'
    from retried
    join pgbroker.job_payload as payload on payload.job_id = any (array[retried.id])
    where held.tenant_id = retried.tenant_id
      and held.job_type_id = retried.job_type_id
      and held.key = payload.idempotency_key
      and held.job_id <> retried.id
),
-- A pass makes edges of them.
awaited_again as (
    update pgbroker.deferred_reference as expired
    set expired_at = null
    from retried
    where expired.dependent_id = any (array[retried.id])
      and expired.expired_at is not null
),
forgotten as (
    delete from pgbroker.job_state
    using retried
    where job_state.job_id = retried.id
)
select
    ended.id as job_id,
    case
        when retried.id is not null then 'retried'
        when ended.status not in (11 /* failed */, 12 /* dead_letter */, 13 /* cancelled */) then 'unchanged'
        when ended.newer_id is not null then 'key_held_by_newer_job'
        else 'prerequisite_failed'
    end as outcome,
    ended.queue_id,
    ended.status,
    coalesce(ended.newer_id, ended.barred_by) as holder_id,
    ended.missing
from ended
left join retried on retried.id = ended.id
