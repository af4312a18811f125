-- A UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits. For callers that bring no id of their own.
--
-- One expression and no more, which becomes part of the statement that asks. The random bits take most of the time.
create function pgbroker.uuid7_1() returns uuid
language sql volatile as $function$
    select (
        overlay(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') placing '-' from 9 for 0)
        || '-7'
        || substr(gen_random_uuid()::text, 16)
    )::uuid
$function$;
