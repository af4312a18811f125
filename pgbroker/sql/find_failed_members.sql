-- Find the members of a run group that have ended badly, a page at a time, those first that others wait for.
--
--   group_id     uuid     the group
--   cancelled    boolean  whether those that were cancelled count too
--   after_level  int      the page before ended with a job of this level
--   after        uuid     and with this id
--   limit        bigint   page size
--
-- Scope:  tenant
-- Rows:   id and level of failed members, dead letters and, if asked for, cancelled ones, in the order of both.
-- Locks:  none.
-- Index:  job_group, job_dependency_edge.
--
-- status + 0: whoever has many bad jobs and a group of few must not read the index of the former.
--
-- What was cancelled because of another job is never among them: it comes back with that one. By level, since a job is
-- not retried before what it waits for.
select bad.id as job_id, bad.level
from (
    select job.id, coalesce(pgbroker.level_of_1(job.id), 0) as level
    from pgbroker.job
    where job.run_group_id = %(group_id)s
      and (
          job.status + 0 in (11 /* failed */, 12 /* dead_letter */)
          or job.status + 0 = 13 /* cancelled */
          and %(cancelled)s
          and not exists (
              select
              from pgbroker.job_state
              where job_state.job_id = job.id
                and job_state.reason_code = 'prerequisite_failed'
          )
      )
    offset 0
) as bad
where (bad.level, bad.id) > (%(after_level)s::int, %(after)s::uuid)
order by bad.level, bad.id
limit %(limit)s
