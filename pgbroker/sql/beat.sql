-- Tell that a worker lives: make its row, or renew it.
--
--   worker_id  uuid      this process start, never reused
--   name       text      what people call it
--   host       text      where it runs
--   pid        int       its process there
--   version    text      pgbroker's version
--   queues     text[]    the queues it serves
--   slots      int       jobs it runs at once
--   running    int       jobs it runs now
--   held       int       jobs it holds that do not run yet
--   draining   boolean   true once it stopped claiming
--   stopped    boolean   true with its last beat
--   lease      interval  how long the row counts as alive
--
-- Scope:  none
-- Rows:   none.
-- Locks:  the worker's own row.
insert into pgbroker.worker as worker (
    id, name, host, pid, version, queues, slots, running, held, expires_at, draining_at, stopped_at
)
values (
    %(worker_id)s,
    %(name)s,
    %(host)s,
    %(pid)s,
    %(version)s,
    %(queues)s::text[],
    %(slots)s,
    %(running)s,
    %(held)s,
    statement_timestamp() + %(lease)s::interval,
    case when %(draining)s::boolean then statement_timestamp() end,
    case when %(stopped)s::boolean then statement_timestamp() end
)
on conflict (id) do update
set running = excluded.running,
    held = excluded.held,
    slots = excluded.slots,
    heartbeat_at = statement_timestamp(),
    -- A worker that said goodbye is not alive, however fresh its beat.
    expires_at = case when excluded.stopped_at is null then excluded.expires_at else statement_timestamp() end,
    draining_at = coalesce(worker.draining_at, excluded.draining_at),
    stopped_at = excluded.stopped_at
