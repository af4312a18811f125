-- Repair jobs and groups that do not stand where their edges say, the next ones in the order of their ids.
--
--   after  uuid  the last id of the page before
--   limit  int   most jobs and groups of the page
--   skip   int   leave so many of them alone, the first: a page with them has failed
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one: the last id of this page, null at the end, and the ids that were repaired.
-- Locks:  rows of jobs, groups and edges that it repairs, jobs and groups skip locked.
-- Index:  job_waiting, job_dependency_open, run_group_sealed.
select page.last, page.repaired
from pgbroker.reconcile_1(%(after)s, %(limit)s, %(skip)s) as page
