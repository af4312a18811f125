-- Say when a schedule has something to be decided next.
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one: seconds until the next tick or the end of a pause, null when none is to come; and whether an occurrence
--         waits until another one is over.
-- Locks:  none.
-- Index:  schedule_due, schedule_pause_ends, schedule_buffered.
select
    extract(
        epoch from least(
            (select each.next_run_at from pgbroker.schedule as each where each.next_run_at is not null order by each.next_run_at, each.id limit 1),
            (select each.paused_until from pgbroker.schedule as each where each.paused_until is not null order by each.paused_until, each.id limit 1)
        ) - statement_timestamp()
    )::double precision as seconds,
    exists (select from pgbroker.schedule as each where each.buffered_for is not null and each.enabled and each.paused_at is null) as waits
