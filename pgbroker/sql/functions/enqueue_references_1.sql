-- Look at what an entry says of its group and its prerequisites: its form, not yet what it names.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Say what is wrong with the form of a reference, null when nothing is.
create function pgbroker.reference_misfit_1(reference jsonb) returns text
language plpgsql immutable as $function$
declare
    strange text;
begin
    if jsonb_typeof(reference) = 'string' then
        return case when length(reference #>> '{}') not between 1 and 255
            then 'depends_on has an element that is empty or longer than 255 characters' end;
    end if;
    if jsonb_typeof(reference) <> 'object' then
        return format('depends_on has an element of type %s. Give the id of a job, or an object.', jsonb_typeof(reference));
    end if;
    strange := (select min(name) from jsonb_object_keys(reference - '{job,group,name,on_failure,within_seconds}'::text[]) as name);
    if strange is not null then
        return format('there is no key %s in a reference. Use job, group, name, on_failure, within_seconds.', to_jsonb(left(strange, 80)));
    end if;
    if reference ? 'name' then
        if reference ?| '{job,group,within_seconds}' then
            return 'depends_on has a reference with name and something else. Give name alone, or group and job.';
        end if;
        if jsonb_typeof(reference -> 'name') <> 'string' or length(reference ->> 'name') not between 1 and 255 then
            return 'depends_on has a reference whose name is no string of 1 to 255 characters';
        end if;
    elsif not reference ?| '{job,group}' then
        return 'depends_on has a reference without job and group. Name one of them, or both.';
    end if;
    if jsonb_typeof(reference -> 'job') <> 'string' or jsonb_typeof(reference -> 'group') <> 'string'
        or length(reference ->> 'job') not between 1 and 255 or length(reference ->> 'group') not between 1 and 255 then
        return 'depends_on has a reference whose job or group is no string of 1 to 255 characters';
    end if;
    if reference ->> 'on_failure' not in ('cancel', 'block', 'ignore') then
        return format('on_failure %s is not cancel, block or ignore', quote_nullable(left(reference ->> 'on_failure', 80)));
    end if;
    if reference ? 'within_seconds' and not reference ? 'group' then
        return 'within_seconds is for what is named by its group: an id exists or does not';
    end if;
    return pgbroker.number_misfit_1(
        'within_seconds', reference -> 'within_seconds', 0.000001, 316224000, 'seconds above 0, at most 316224000'
    );
end
$function$;

-- Say what is wrong with what an entry says of its group and its prerequisites, null when nothing is.
create function pgbroker.links_misfit_1(group_name text, name text, depends_on jsonb, on_failure text) returns text
language plpgsql immutable as $function$
begin
    if length(group_name) not between 1 and 255 then
        return 'group is empty or longer than 255 characters';
    elsif length(name) not between 1 and 255 then
        return 'name is empty or longer than 255 characters';
    elsif name is not null and group_name is null then
        return 'name is for a job in a group. Give group too, or find the job by its id or idempotency_key.';
    elsif on_failure not in ('cancel', 'block', 'ignore') then
        return format('on_failure %s is not cancel, block or ignore', quote_nullable(left(on_failure, 80)));
    elsif depends_on is null or jsonb_typeof(depends_on) = 'null' then
        return null;
    elsif jsonb_typeof(depends_on) <> 'array' then
        return format('depends_on is of type %s. Give an array of references.', jsonb_typeof(depends_on));
    end if;
    return (
        select misfit
        from jsonb_array_elements(depends_on) as each (reference)
        cross join lateral pgbroker.reference_misfit_1(each.reference) as misfit
        where misfit is not null
        limit 1
    );
end
$function$;

create function pgbroker.on_failure_1(policy text) returns smallint
language sql immutable as $function$
    select case policy when 'block' then 1 /* block */ when 'ignore' then 2 /* ignore */ else 0 /* cancel */ end::smallint
$function$;
