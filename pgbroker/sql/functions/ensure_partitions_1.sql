-- Make sure that the history tables have partitions from now on for `ahead` more widths.
--
--   width  text  day, week or month (PGBROKER["PARTITION"])
--   ahead  int   how many partitions after the current one
--
-- Returns the names of the partitions it made. Safe to run by many processes at once: one works, the
-- others return at once with nothing. Only the owner of the tables can run it.
--
-- A default partition takes what no other covers, so that history is never refused because no process was
-- alive to prepare a day. Each new one is made alone, given its policy and a CHECK that proves its range,
-- and attached: the lock on the parent is short. A range that already has rows in the default partition is
-- left to it.
--
-- It looks with the rows of all tenants: one hidden by row security would pass the check and fail the attach.
create function pgbroker.ensure_partitions_1(width text, ahead int) returns setof text
language plpgsql as $function$
declare
    scope_before constant text := coalesce(current_setting('pgbroker.scope', true), '');
    parent text;
    time_column text;
    starts timestamptz;
    ends timestamptz;
    partition text;
    taken boolean;
    step interval := case width when 'day' then interval '1 day' when 'week' then interval '7 days' else interval '1 month' end;
begin
    if width not in ('day', 'week', 'month') then
        raise exception 'partition width % is not day, week or month', width using errcode = '22023';
    end if;
    if not pg_try_advisory_xact_lock(hashtextextended('pgbroker.ensure_partitions', 0)) then
        return;
    end if;
    perform set_config('pgbroker.scope', 'all', true);
    for parent, time_column in values ('execution', 'completed_at'), ('job_event', 'occurred_at') loop
        if to_regclass(format('pgbroker.%I', parent || '_default')) is null then
            execute format('create table pgbroker.%I partition of pgbroker.%I default', parent || '_default', parent);
            perform pgbroker.secure_table_1(format('pgbroker.%I', parent || '_default')::regclass);
            return next parent || '_default';
        end if;
        for nth in 0..ahead loop
            -- UTC, whatever the session's time zone: two sessions must agree where a day begins.
            starts := date_trunc(width, statement_timestamp() at time zone 'UTC') at time zone 'UTC';
            starts := ((starts at time zone 'UTC') + nth * step) at time zone 'UTC';
            ends := ((starts at time zone 'UTC') + step) at time zone 'UTC';
            partition := format('%s_%s', parent, to_char(starts at time zone 'UTC', 'YYYYMMDD'));
            continue when to_regclass(format('pgbroker.%I', partition)) is not null;
            -- Another width may have covered a part of this range before the setting was changed.
            select exists (
                select
                from pg_inherits
                cross join lateral pg_get_expr(
                    (select relpartbound from pg_class where oid = inhrelid), inhrelid
                ) as bound (text)
                cross join lateral regexp_match(bound.text, 'FROM \(''(.*)''\) TO \(''(.*)''\)') as range (pair)
                where inhparent = format('pgbroker.%I', parent)::regclass
                  and range.pair is not null
                  and tstzrange(range.pair[1]::timestamptz, range.pair[2]::timestamptz) && tstzrange(starts, ends)
            ) into taken;
            continue when taken;
            execute format(
                'select exists (select from pgbroker.%I where %I >= %L and %I < %L)',
                parent || '_default', time_column, starts, time_column, ends
            ) into taken;
            continue when taken;
            execute format('create table pgbroker.%I (like pgbroker.%I including defaults including constraints)', partition, parent);
            execute format(
                'alter table pgbroker.%I add constraint in_range check (%I >= %L and %I < %L)',
                partition, time_column, starts, time_column, ends
            );
            perform pgbroker.secure_table_1(format('pgbroker.%I', partition)::regclass);
            execute format(
                'alter table pgbroker.%I attach partition pgbroker.%I for values from (%L) to (%L)',
                parent, partition, starts, ends
            );
            execute format('alter table pgbroker.%I drop constraint in_range', partition);
            return next partition;
        end loop;
    end loop;
    perform set_config('pgbroker.scope', scope_before, true);
end
$function$;
