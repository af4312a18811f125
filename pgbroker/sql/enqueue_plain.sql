-- Enqueue one plain job in the caller's transaction, through the short way of the rule book.
--
--   job_id          uuid   the new job's
--   job_type        text   name of its type
--   queue           text   name of its queue
--   args            jsonb  arguments as workers read them
--   type_version    int    version of the type
--   priority        int    -100 to 100
--   max_attempts    int    1 to 10000
--   principal       text   who enqueues; null: nobody in particular
--   correlation_id  text   what it belongs to, or null
--   traceparent     text   its trace, or null
--
-- Scope:  tenant
-- Rows:   one: when it was created, in microseconds since 1970; null when it is not plain or not right, and nothing was stored.
-- Locks:  none.
--
-- Without casts: the function's own types are found for less than to read one written out for each parameter.
select pgbroker.enqueue_plain_1(
    %(job_id)s,
    %(job_type)s,
    %(queue)s,
    %(args)s,
    %(type_version)s,
    %(priority)s,
    %(max_attempts)s,
    %(principal)s,
    %(correlation_id)s,
    %(traceparent)s
) as created_at_microseconds
