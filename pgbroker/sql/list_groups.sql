-- List run groups, newest first, a page at a time.
--
--   tenant  text      only this tenant's; null: of all that the scope shows
--   name    text      only of this name; null: of any
--   state   smallint  only in this state; null: in any
--   after   uuid      the page before ended with this id; null: from the newest on
--   limit   bigint    page size
--
-- Scope:  tenant
-- Rows:   the group's row.
-- Locks:  none.
-- Index:  run_group_pkey, backwards; run_group_name_unique where tenant and name are given.
--
-- An id begins with the time at which it was made, so its order is that of time, near enough for a list.
select
    run_group.id,
    run_group.name,
    run_group.tenant_id,
    run_group.state,
    run_group.tolerate_count,
    run_group.tolerate_percent,
    run_group.on_completed,
    run_group.on_failed,
    run_group.completed_job_id,
    run_group.failed_job_id,
    run_group.callback_error,
    run_group.cancel_requested_at,
    run_group.created_at,
    run_group.sealed_at,
    run_group.finished_at
from pgbroker.run_group
where (%(tenant)s::text is null or run_group.tenant_id = %(tenant)s::text)
  and (%(name)s::text is null or run_group.name = %(name)s::text)
  and (%(state)s::smallint is null or run_group.state = %(state)s::smallint)
  and (%(after)s::uuid is null or run_group.id < %(after)s::uuid)
order by run_group.id desc
limit %(limit)s
