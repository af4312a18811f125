-- Delete a queue that nothing refers to, with its priorities, pauses and samples.
--
--   name  text  the queue
--
-- Scope:  all
-- Rows:   one: deleted, unknown_queue, or what refers to it (is_default, is_declared, has_jobs, has_history, is_scheduled:NAME).
-- Locks:  the table of queues, exclusively: it waits up to a second for whoever has enqueued and not committed.
select pgbroker.delete_queue_1(%(name)s::text)
