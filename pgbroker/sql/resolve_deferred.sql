-- Turn references to what was still to come into edges, or end them: the next ones in the order in which they were made.
--
--   after  bigint  the last one of the page before
--   limit  int     most references of the page
--   skip   int     leave so many of them alone, the first: a page with them has failed
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one: the last one of this page, null at the end, and how many came to an end.
-- Locks:  rows of jobs that get an edge, skip locked; the graph of their tenants, if nobody has it.
-- Index:  deferred_reference_awaited, run_group_name_unique, job_group_name.
select page.last, page.settled
from pgbroker.resolve_deferred_1(%(after)s, %(limit)s, %(skip)s) as page
