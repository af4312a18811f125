-- Enqueue plain jobs that differ in their ids and arguments only, through the short way of the rule book.
--
--   job_ids         uuid[]  the new jobs'
--   job_type        text    name of their type
--   queue           text    name of their queue
--   args            jsonb   an array of each one's arguments, as workers read them
--   type_version    int     version of the type
--   priority        int     -100 to 100
--   max_attempts    int     1 to 10000
--   principal       text    who enqueues; null: nobody in particular
--   correlation_id  text    what they belong to, or null
--   traceparent     text    their trace, or null
--
-- Scope:  tenant
-- Rows:   one: when they were created, in microseconds since 1970; null when one is not plain or not right, and nothing was stored.
-- Locks:  none.
select (extract(epoch from pgbroker.enqueue_plain_many_1(
    %(job_ids)s::uuid[],
    %(job_type)s::text,
    %(queue)s::text,
    %(args)s::jsonb,
    %(type_version)s::int,
    %(priority)s::int,
    %(max_attempts)s::int,
    %(principal)s::text,
    %(correlation_id)s::text,
    %(traceparent)s::text
)) * 1000000)::bigint as created_at_microseconds
