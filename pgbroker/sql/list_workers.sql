-- List workers and whether they live, by the database's clock; those longest silent or stopped last.
--
--   since  interval  leave out who was last heard of longer ago
--   limit  bigint    most workers to list
--
-- Scope:  none
-- Rows:   id, name, host, pid, version, queues, slots, running, held, started_at, heartbeat_at, state (alive,
--         draining, silent, stopped), seconds since it was heard of.
-- Locks:  none.
-- Index:  worker_heartbeat; a silent worker's row is found by its start.
select
    worker.id,
    worker.name,
    worker.host,
    worker.pid,
    worker.version,
    worker.queues,
    worker.slots,
    worker.running,
    worker.held,
    worker.started_at,
    worker.heartbeat_at,
    case
        when worker.stopped_at is not null then 'stopped'
        when worker.expires_at <= statement_timestamp() then 'silent'
        when worker.draining_at is not null then 'draining'
        else 'alive'
    end as state,
    extract(epoch from statement_timestamp() - worker.heartbeat_at)::double precision as silent_seconds
from pgbroker.worker
where worker.heartbeat_at > statement_timestamp() - %(since)s::interval
order by worker.stopped_at is not null, worker.expires_at <= statement_timestamp(), worker.started_at desc
limit %(limit)s
