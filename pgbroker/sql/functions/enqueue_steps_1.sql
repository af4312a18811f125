-- Calls whose entries meet each other in more ways than one: step by step, so that one bad entry does not sink the
-- others.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Tell whether storing these entries may be refused as a whole: a member of a group that others wait for may close a
-- cycle, which is seen once all are stored; and what takes the place of a job must not be refused after that is done.
create function pgbroker.enqueue_is_delicate_1(entries pgbroker.enqueue_entry_1[]) returns boolean
language sql stable as $function$
    select coalesce(bool_or(asked.replaces), false) or exists (
        select
        from unnest(array_agg(distinct asked.run_group_id)) as joined_group (id)
        cross join lateral pgbroker.open_edges_to_1(joined_group.id)
        offset 0
    )
    from (
        select entry.on_conflict = 'replace' as replaces, entry.run_group_id
        from unnest(entries) as entry
        where entry.outcome is null
          and entry.depends_on is not null
    ) as asked
$function$;

-- Enqueue such a call: all at once, under a savepoint, and when that is refused entry by entry.
create function pgbroker.enqueue_in_steps_1(
    jobs jsonb, entries pgbroker.enqueue_entry_1[], edges pgbroker.edge_1[]
)
returns table (ordinal int, job_id uuid, outcome text, detail text)
language plpgsql volatile as $function$
declare
    code text;
begin
    begin
        perform set_config('pgbroker.step', 'on', true);
        return query select * from pgbroker.enqueue_many_1(jobs);
        perform set_config('pgbroker.step', '', true);
        return;
    exception when sqlstate 'PB001' then
        get stacked diagnostics code = pg_exception_hint;
        if code not in ('cyclic_dependency', 'prerequisite_refused') then
            raise;
        end if;
    end;
    return query select * from pgbroker.enqueue_one_by_one_1(jobs, entries, edges);
end
$function$;

-- Enqueue entries one after the other, in the same transaction: what is waited for first, and otherwise as they come.
-- entries and edges are those that enqueue_links_1 has read of jobs.
create function pgbroker.enqueue_one_by_one_1(
    jobs jsonb, entries pgbroker.enqueue_entry_1[], edges pgbroker.edge_1[]
)
returns table (ordinal int, job_id uuid, outcome text, detail text)
language plpgsql volatile as $function$
declare
    before constant text := coalesce(current_setting('pgbroker.step', true), '');
    turn record;
    job jsonb;
    sunk int[] := '{}';
    -- The ids that jobs have in the end, by those that their entries had, where they differ.
    stored jsonb := '{}';
begin
    perform set_config('pgbroker.step', 'on', true);
    for turn in
        select entry.ordinal, entry.id, entry.outcome, entry.detail, linked.needs
        from unnest(entries) as entry
        left join (
            select
                edge.ordinal,
                max(edge.level) as level,
                array_agg(edge.on_ordinal) filter (where edge.on_ordinal is not null) as needs
            from unnest(edges) as edge
            group by edge.ordinal
        ) as linked on linked.ordinal = entry.ordinal
        order by coalesce(linked.level, 0), entry.ordinal
    loop
        ordinal := turn.ordinal;
        job_id := turn.id;
        outcome := turn.outcome;
        detail := turn.detail;
        if outcome is null and turn.needs && sunk then
            outcome := 'prerequisite_refused';
            detail := 'an entry of this call, which it depends on, was refused';
        end if;
        if outcome is null then
            job := (jobs -> (ordinal - 1)) || jsonb_build_object('id', job_id);
            if stored <> '{}' and jsonb_typeof(job -> 'depends_on') = 'array' then
                job := job || jsonb_build_object('depends_on', pgbroker.stored_references_1(job -> 'depends_on', stored));
            end if;
            begin
                select answer.job_id, answer.outcome, answer.detail
                into strict job_id, outcome, detail
                from pgbroker.enqueue_many_1(jsonb_build_array(job)) as answer;
            exception when sqlstate 'PB001' then
                get stacked diagnostics outcome = pg_exception_hint, detail = message_text;
                detail := regexp_replace(detail, '^pgbroker: ', '');
            end;
        end if;
        if outcome not in ('created', 'replaced', 'existing') then
            sunk := sunk || ordinal;
        elsif job_id <> turn.id then
            stored := stored || jsonb_build_object(turn.id, job_id);
        end if;
        return next;
    end loop;
    perform set_config('pgbroker.step', before, true);
end
$function$;

-- Let references name jobs by the ids that they have in the end.
create function pgbroker.stored_references_1(depends_on jsonb, stored jsonb) returns jsonb
language sql immutable as $function$
    select jsonb_agg(
        case
            when meant.id is null or stored -> meant.id is null then reference
            when jsonb_typeof(reference) = 'string' then stored -> meant.id
            else reference || jsonb_build_object('job', stored -> meant.id)
        end
        order by place
    )
    from jsonb_array_elements(depends_on) with ordinality as each (reference, place)
    cross join lateral (
        select case
            when said ~ '^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$' then said::uuid::text
        end as id
        from (
            select case
                when jsonb_typeof(reference) = 'string' then reference #>> '{}'
                when jsonb_typeof(reference) = 'object' and not reference ? 'group' then reference ->> 'job'
            end as said
        ) as words
    ) as meant
$function$;
