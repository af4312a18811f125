-- Enqueue plain jobs of one kind that wait for each other or for jobs that exist, through the short way of the rule book.
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
--   group_name      text    name of their run group, which is open; null: none
--   names           text[]  each one's name in it; null: none has a name
--   edge_places     int[]   of each edge who waits: a place among job_ids, from 1, ascending
--   edge_on         int[]   ... what for: an earlier place, or null
--   edge_ids        uuid[]  ... or the id of a job that exists
--   on_failure      text    cancel, block or ignore, of every edge
--
-- Scope:  tenant
-- Rows:   one: when they were created, in microseconds since 1970; null when one is not plain or not right, and nothing was stored.
-- Locks:  the group's row, key share, until the caller commits.
-- Commit: edges to what lives are looked at once more.
select (extract(epoch from pgbroker.enqueue_linked_many_1(
    %(job_ids)s::uuid[],
    %(job_type)s::text,
    %(queue)s::text,
    %(args)s::jsonb,
    %(type_version)s::int,
    %(priority)s::int,
    %(max_attempts)s::int,
    %(principal)s::text,
    %(correlation_id)s::text,
    %(traceparent)s::text,
    %(group_name)s::text,
    %(names)s::text[],
    %(edge_places)s::int[],
    %(edge_on)s::int[],
    %(edge_ids)s::uuid[],
    %(on_failure)s::text
)) * 1000000)::bigint as created_at_microseconds
