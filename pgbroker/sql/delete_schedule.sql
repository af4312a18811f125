-- Delete a schedule that is held. What it has created stays, and so does what became of its ticks, until that is old.
--
--   schedule_id  uuid  the schedule
--
-- Scope:  tenant
-- Rows:   one: its id; none where this tenant has no such schedule.
-- Locks:  the schedule's row.
delete from pgbroker.schedule
where schedule.id = %(schedule_id)s
returning schedule.id
