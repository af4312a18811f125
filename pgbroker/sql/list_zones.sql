-- List by which rules of which time zones the next ticks of schedules were worked out.
--
-- Scope:  all
-- Rows:   one per zone and rules.
-- Locks:  none.
select distinct schedule.time_zone, schedule.zone_rules
from pgbroker.schedule
where schedule.next_run_at is not null
order by 1, 2
