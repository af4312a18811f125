-- A UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits. For callers that bring no id of their own.
create function pgbroker.uuid7_1() returns uuid
language sql volatile as $function$
    select encode(
        set_byte(
            stamped.bytes,
            6,
            (get_byte(stamped.bytes, 6) & 15) | 112
        ),
        'hex'
    )::uuid
    from (
        select overlay(
            uuid_send(gen_random_uuid())
            placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
            from 1 for 6
        )
    ) as stamped (bytes)
$function$;
