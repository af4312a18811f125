-- Delete a page of what became of ticks long ago, the oldest first.
--
--   age    interval  only what is older
--   limit  bigint    most rows to look at
--   skip   bigint    leave so many of the oldest alone
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one: how many were looked at, and how many were deleted.
-- Locks:  rows of schedules in id order, skip locked; then what became of their ticks.
-- Index:  schedule_run_age, schedule_run_pkey.
--
-- What lives is kept, since the overlap of its schedule depends on it; and what waits for its turn. A schedule remembers
-- up to which tick it has forgotten, so that no backfill creates one again. Only whoever holds a schedule changes its
-- runs, so nobody waits here.
with old as materialized (
    select run.schedule_id, run.scheduled_for, run.state, run.job_id, run.run_group_id
    from pgbroker.schedule_run as run
    where run.created_at < statement_timestamp() - %(age)s::interval
    order by run.created_at
    offset %(skip)s
    limit %(limit)s
),
held as materialized (
    select schedule.id, schedule.buffered_for
    from pgbroker.schedule
    where schedule.id = any (array(select old.schedule_id from old))
    order by schedule.id
    for no key update skip locked
),
wanted as materialized (
    select old.schedule_id, old.scheduled_for
    from old
    left join held on held.id = old.schedule_id
    where case
            when held.id is not null then old.state <> 'buffered' or held.buffered_for is distinct from old.scheduled_for
            else not exists (select from pgbroker.schedule where schedule.id = any (array[old.schedule_id]))
        end
      and not exists (select from pgbroker.job where job.id = any (array[old.job_id]) and job.status + 0 < 10)
      and not exists (
          select
          from pgbroker.run_group
          where run_group.id = any (array[old.run_group_id]) and run_group.state + 0 < 10
      )
),
gone as (
    delete from pgbroker.schedule_run as run
    using wanted
    where run.schedule_id = any (array[wanted.schedule_id])
      and run.scheduled_for = any (array[wanted.scheduled_for])
      -- Not one that was made up for since it was looked at; and no way to come here by age once more.
      and (run.created_at < statement_timestamp() - %(age)s::interval) is true
    returning run.schedule_id, run.scheduled_for
),
forgotten as (
    select gone.schedule_id, max(gone.scheduled_for) as latest
    from gone
    group by gone.schedule_id
),
marked as (
    update pgbroker.schedule
    set forgotten_until = greatest(schedule.forgotten_until, forgotten.latest)
    from forgotten
    where schedule.id = any (array[forgotten.schedule_id])
    returning schedule.id
)
select
    (select count(*) from old) as seen,
    (select count(*) from gone) as deleted
