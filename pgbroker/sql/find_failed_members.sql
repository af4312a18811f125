-- Find the members of a run group that have ended badly, a page at a time.
--
--   group_id   uuid     the group
--   cancelled  boolean  whether those that were cancelled count too
--   after      uuid     the page before ended with this id
--   limit      bigint   page size
--
-- Scope:  tenant
-- Rows:   the ids of failed members, dead letters and, if asked for, cancelled ones, in order.
-- Locks:  none.
-- Index:  job_group.
--
-- What was cancelled because of another job is never among them: it comes back with that one.
select job.id as job_id
from pgbroker.job
where job.run_group_id = %(group_id)s
  and job.id > %(after)s
  and (
      job.status in (11 /* failed */, 12 /* dead_letter */)
      or job.status = 13 /* cancelled */
      and %(cancelled)s
      and not exists (
          select
          from pgbroker.job_state
          where job_state.job_id = job.id
            and job_state.reason_code = 'prerequisite_failed'
      )
  )
order by job.id
limit %(limit)s
