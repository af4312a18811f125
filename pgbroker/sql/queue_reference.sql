-- Say what refers to a queue, so that it cannot be deleted.
--
--   name  text  the queue
--
-- Scope:  all
-- Rows:   one: is_default, is_declared, has_jobs, has_history, is_scheduled:NAME; null when there is nothing, or no such queue.
-- Locks:  none.
select pgbroker.queue_reference_1(%(name)s::text)
