-- Bring ready and scheduled jobs that no claim looks at into sight: of a priority that their queue is not known to
-- have, or of a queue that has no row.
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one: the names of the queues that were made, and how many priorities were added.
-- Locks:  none but those of what it inserts.
-- Index:  job_claim and job_due, one look-up for each queue and priority there is.
--
-- Neither comes of a call of pgbroker's, with one exception: at REPEATABLE READ a caller may enqueue into a queue that was
-- deleted after its snapshot. Rows that are written by hand in SQL can name any number. A queue comes back as lost-NUMBER,
-- since nobody remembers its name, and whoever serves all queues serves it.
with recursive lane (queue_id, priority) as (
    (
        select job.queue_id, job.priority
        from pgbroker.job
        where job.status = 2 /* ready */
        order by job.queue_id, job.priority desc
        limit 1
    )
    union all
    select following.queue_id, following.priority
    from lane
    cross join lateral (
        select candidate.queue_id, candidate.priority
        from (
            (
                select job.queue_id, job.priority
                from pgbroker.job
                where job.status = 2 /* ready */
                  and job.queue_id = lane.queue_id
                  and job.priority < lane.priority
                order by job.priority desc
                limit 1
            )
            union all
            (
                select job.queue_id, job.priority
                from pgbroker.job
                where job.status = 2 /* ready */
                  and job.queue_id > lane.queue_id
                order by job.queue_id, job.priority desc
                limit 1
            )
        ) as candidate
        order by candidate.queue_id, candidate.priority desc
        limit 1
    ) as following
),
later (queue_id) as (
    (
        select job.queue_id
        from pgbroker.job
        where job.status = 0 /* scheduled */
        order by job.queue_id
        limit 1
    )
    union all
    select following.queue_id
    from later
    cross join lateral (
        select job.queue_id
        from pgbroker.job
        where job.status = 0 /* scheduled */
          and job.queue_id > later.queue_id
        order by job.queue_id
        limit 1
    ) as following
),
made as (
    insert into pgbroker.queue (id, name)
    overriding system value
    select waiting.queue_id, 'lost-' || waiting.queue_id
    from (
        select lane.queue_id from lane
        union
        select later.queue_id from later
    ) as waiting
    where not exists (select from pgbroker.queue where queue.id = waiting.queue_id)
    on conflict do nothing
    returning name
),
added as (
    insert into pgbroker.queue_priority (queue_id, priority)
    select lane.queue_id, lane.priority
    from lane
    where not exists (
        select
        from pgbroker.queue_priority as known
        where known.queue_id = lane.queue_id and known.priority = lane.priority
    )
    returning 1
)
select
    array(select made.name from made order by made.name) as queues,
    (select count(*) from added) as priorities
