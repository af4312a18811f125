-- Look at the dependents of what has ended or come back, where whoever did it left them to a pass.
--
--   limit  int  most edges to look at, and a little more
--   skip   int  leave so many of what was left alone, the first: a pass with them has failed
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one: how many edges, and prerequisites, were looked at (fewer than limit: there is no more for now), and
--         whether anything is left for a moment later.
-- Locks:  job and run group rows, in id order, skip locked.
-- Index:  unresolved_pkey, job_dependency_prerequisite, job_dependency_open, job_pkey.
--
-- waiting -> ready, scheduled, cancelled, blocked; blocked, cancelled -> waiting, ready, scheduled, blocked.
select pass.looked_at, pass.is_left
from pgbroker.resolve_pass_1(%(limit)s, %(skip)s) as pass
