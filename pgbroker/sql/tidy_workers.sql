-- Delete a page of rows of workers that were not heard of for long.
--
--   silent  interval  how long
--   limit   bigint    most rows to delete
--
-- Scope:  none
-- Rows:   one: how many were deleted.
-- Locks:  the workers' rows, skip locked.
-- Index:  worker_heartbeat; whoever is silent for so long has started before.
with gone as (
    delete from pgbroker.worker
    where id in (
        select worker.id
        from pgbroker.worker
        where worker.started_at < statement_timestamp() - %(silent)s::interval
          and worker.heartbeat_at < statement_timestamp() - %(silent)s::interval
        order by worker.started_at
        limit %(limit)s
        for no key update skip locked
    )
    returning 1
)
select count(*) from gone
