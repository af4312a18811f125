-- Fold a page of counters into the next wider bucket, oldest first.
--
--   fold   smallint  what is folded: a worker's minute (0), a minute (1) or an hour (2)
--   width  text      how wide the bucket is that takes it: minute, hour or day, which begin in UTC
--   age    interval  only buckets that began longer ago
--   limit  bigint    most counters to fold
--
-- Scope:  none
-- Rows:   one: how many were folded.
-- Locks:  the counters, skip locked; then those they are added to, in order.
-- Index:  job_counter_fold.
--
-- Nothing is lost or counted twice, however many do it at once: what is deleted here is added here. A settle that
-- comes so late that its minute is folded already makes a new row, which is folded like the others.
with page as materialized (
    select counter.job_type_id, counter.queue_id, counter.worker_id, counter.bucket, counter.fold
    from pgbroker.job_counter as counter
    where counter.fold = %(fold)s
      and counter.bucket < statement_timestamp() - %(age)s::interval
    order by counter.bucket
    limit %(limit)s
    for no key update skip locked
),
gone as (
    delete from pgbroker.job_counter as counter
    using page
    where counter.job_type_id = page.job_type_id
      and counter.queue_id = page.queue_id
      and counter.worker_id = page.worker_id
      and counter.bucket = page.bucket
      and counter.fold = page.fold
    returning counter.*
),
folded as (
    insert into pgbroker.job_counter as counter (
        job_type_id, queue_id, worker_id, bucket, fold, done, retried, snoozed, failed, dead, cancelled,
        run_seconds, wait_seconds
    )
    select
        job_type_id,
        queue_id,
        '00000000-0000-0000-0000-000000000000',
        date_trunc(%(width)s, bucket, 'UTC'),
        fold + 1,
        sum(done),
        sum(retried),
        sum(snoozed),
        sum(failed),
        sum(dead),
        sum(cancelled),
        sum(run_seconds),
        sum(wait_seconds)
    from gone
    group by 1, 2, 4, 5
    order by 1, 2, 4
    on conflict (job_type_id, queue_id, worker_id, bucket, fold) do update
    set done = counter.done + excluded.done,
        retried = counter.retried + excluded.retried,
        snoozed = counter.snoozed + excluded.snoozed,
        failed = counter.failed + excluded.failed,
        dead = counter.dead + excluded.dead,
        cancelled = counter.cancelled + excluded.cancelled,
        run_seconds = counter.run_seconds + excluded.run_seconds,
        wait_seconds = counter.wait_seconds + excluded.wait_seconds
)
select count(*) from gone
