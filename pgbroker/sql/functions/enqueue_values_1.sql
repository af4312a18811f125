-- Look at the values of an entry: what may be stored, and what to say of the rest.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.

-- Tell of an error whether nothing is wrong with what was asked for: a deadlock, a failed serialisation, a table that
-- somebody holds, a full disk, a server that shuts down. Whoever asked is to hear of it, and to ask again with all of it.
create function pgbroker.is_passing_1(code text) returns boolean
language sql immutable as $function$
    select code ~ '^(40|53|57|58)' or code = '55P03'
$function$;

-- Tell whether what was read as text was something else: JSON that is no string begins with one of these. Only
-- then is the entry looked at again.
create function pgbroker.not_a_string_1(value text, entries jsonb, place bigint, field text) returns boolean
language sql immutable as $function$
    select case
        when strpos('{[-0123456789tf', left(value, 1)) > 0
            then jsonb_typeof(entries -> (place::int - 1) -> field) <> 'string'
    end
$function$;

-- Tell whether a value takes more bytes as text, which is how every reader gets it, than it may. Where the text
-- would be larger than any text can be, program_limit_exceeded is raised.
--
-- Nine bytes of JSON, such as 1e131071, are 16 bytes of jsonb and 131072 of text; no value grows by more than
-- 9216 times. So where that many times its size would fit, nothing is written out. The size is that of #> '{}', the
-- value itself as it is in memory: of one that comes from a table it may be that of its compressed form. Stable, since
-- pg_column_size is: a function that says to be more is called for each row, 5 µs, where this one becomes part of the
-- statement.
create function pgbroker.longer_as_text_1(value jsonb, most int) returns boolean
language sql stable as $function$
    select case
        when pg_column_size(value #> '{}') > most / 10000 then octet_length(value::text) > most
        else false
    end
$function$;

-- Tell whether arguments are an envelope that a worker can open. Compared as text, where 1.0 is not 1.
create function pgbroker.is_envelope_1(args jsonb) returns boolean
language sql immutable as $function$
    select
        jsonb_typeof(args) = 'object'
        and (args - '{args,kwargs}'::text[])::text = '{"v": 1}'
        and jsonb_typeof(coalesce(args -> 'args', '[]')) = 'array'
        and jsonb_typeof(coalesce(args -> 'kwargs', '{}')) = 'object'
$function$;

-- Read a number from a type's declaration, null when none stands there.
create function pgbroker.declared_number_1(value jsonb) returns int
language sql immutable as $function$
    select case
        when jsonb_typeof(value) = 'number' then case
            when value::numeric between -2147483648 and 2147483647 then value::int
        end
    end
$function$;

-- Read tags from a type's declaration, null when what stands there are none.
create function pgbroker.declared_tags_1(value jsonb) returns jsonb
language plpgsql immutable strict as $function$
begin
    return case when pgbroker.tags_misfit_1(value) is null then value end;
end
$function$;

-- Say why these are no tags, null when they are. At most 20, each of 1 to 100 characters.
create function pgbroker.tags_misfit_1(tags jsonb) returns text
language plpgsql immutable strict as $function$
declare
    tag text;
begin
    if jsonb_typeof(tags) <> 'array' then
        return format('tags is of type %s. Give an array of strings.', jsonb_typeof(tags));
    end if;
    if jsonb_array_length(tags) > 20 then
        return format('tags has %s elements. Give at most 20.', jsonb_array_length(tags));
    end if;
    if jsonb_path_exists(tags, 'strict $[*] ? (@.type() != "string")') then
        return 'tags has an element that is not a string. Give an array of strings.';
    end if;
    foreach tag in array array(select jsonb_array_elements_text(tags)) loop
        if length(tag) not between 1 and 100 then
            return 'tags has an element that is empty or longer than 100 characters';
        end if;
        -- They are typed after a flag, and stand in lists.
        if tag ~ '[\u0001-\u001f\u007f-\u009f]' or tag <> btrim(tag) then
            return format(
                'tags has the element %s, with a control character or with a space at an end',
                left(to_jsonb(tag)::text, 80)
            );
        end if;
    end loop;
    return null;
end
$function$;

-- Say what is wrong with the options of a job, null when nothing is.
create function pgbroker.options_misfit_1(options jsonb) returns text
language plpgsql immutable strict as $function$
declare
    strange text;
begin
    if jsonb_typeof(options) <> 'object' then
        return format('options is of type %s, not an object', jsonb_typeof(options));
    end if;
    if options - '{backoff,on_exhausted,timeout,scheduled_for}'::text[] <> '{}' then
        strange := (select min(name) from jsonb_object_keys(options - '{backoff,on_exhausted,timeout,scheduled_for}'::text[]) as name);
        return format('there is no key %s in options. Use backoff, on_exhausted, timeout.', to_jsonb(left(strange, 80)));
    end if;
    if pgbroker.longer_as_text_1(options, 65536) then
        return 'options take more than 64 KiB as text';
    end if;
    if jsonb_typeof(options -> 'scheduled_for') <> 'string' then
        return 'options.scheduled_for is not the text of an instant. Leave it out: a schedule says it.';
    end if;
    if jsonb_typeof(options -> 'on_exhausted') not in ('string', 'null') then
        return format(
            'options.on_exhausted is %s. Give the name of a job type, or null for none.',
            left((options -> 'on_exhausted')::text, 80)
        );
    end if;
    return coalesce(
        pgbroker.number_misfit_1('options.timeout', options -> 'timeout', 0.000001, 2592000, 'seconds above 0, at most 2592000'),
        pgbroker.backoff_misfit_1(options -> 'backoff')
    );
end
$function$;

-- Tell whether a job type has this name, or had it.
create function pgbroker.is_job_type_1(name text) returns boolean
language plpgsql stable strict as $function$
begin
    return exists (select from pgbroker.job_type where job_type.name = $1)
        or exists (select from pgbroker.job_type where job_type.aliases @> array[$1]);
end
$function$;

-- Say what is wrong with a backoff, null when nothing is. A worker's own limits.
create function pgbroker.backoff_misfit_1(backoff jsonb) returns text
language plpgsql immutable strict as $function$
declare
    -- The largest float.
    most constant numeric := 1.7976931348623157e308;
    strange text;
begin
    if jsonb_typeof(backoff) = 'null' then
        return null;
    end if;
    if jsonb_typeof(backoff) <> 'object' then
        return format(
            'options.backoff is of type %s. Give an object of base, factor, cap and jitter.',
            jsonb_typeof(backoff)
        );
    end if;
    if backoff - '{base,cap,factor,jitter}'::text[] <> '{}' then
        strange := (select min(name) from jsonb_object_keys(backoff - '{base,cap,factor,jitter}'::text[]) as name);
        return format(
            'there is no key %s in options.backoff. Use base, cap, factor, jitter.',
            to_jsonb(left(strange, 80))
        );
    end if;
    if jsonb_typeof(backoff -> 'jitter') <> 'boolean' then
        return format('options.backoff.jitter is %s. Give true or false.', left((backoff -> 'jitter')::text, 80));
    end if;
    return coalesce(
        pgbroker.number_misfit_1('options.backoff.base', backoff -> 'base', 0, most, 'seconds, 0 or more'),
        pgbroker.number_misfit_1('options.backoff.factor', backoff -> 'factor', 1, most, 'a number, 1 or more'),
        pgbroker.number_misfit_1('options.backoff.cap', backoff -> 'cap', 0, 31622400, 'seconds from 0 to 31622400')
    );
end
$function$;

-- Say that a value is no number in a range, null when it is, or is left out.
create function pgbroker.number_misfit_1(name text, value jsonb, smallest numeric, largest numeric, wanted text) returns text
language plpgsql immutable strict as $function$
begin
    if jsonb_typeof(value) = 'number' then
        if value::numeric between smallest and largest then
            return null;
        end if;
    elsif jsonb_typeof(value) = 'null' and name = 'options.timeout' then
        return null;
    end if;
    return format('%s is %s. Give %s.', name, left(value::text, 80), wanted);
end
$function$;
