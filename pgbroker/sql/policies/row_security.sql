-- Row-level security for every table with a tenant: enabled, forced, one policy for everybody.
--
-- The policy is a case, not an `or`: it is read once per statement, never an index path and neutral for
-- the planner (an `or` forced full scans; an equality made the planner claim through the tenant's index).
-- An empty setting counts as none: after a transaction-local set it reads '' for the rest of the session.
create function pgbroker.secure_table_1(target regclass) returns void
language plpgsql as $function$
begin
    execute format('alter table %s enable row level security', target);
    execute format('alter table %s force row level security', target);
    execute format(
        $policy$
        create policy tenant on %s using (
            case
                when (select current_setting('pgbroker.scope', true)) = 'all' then true
                else tenant_id = (select coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'))
            end
        )
        $policy$,
        target
    );
end
$function$;

select pgbroker.secure_table_1(name::regclass)
from unnest(array[
    'pgbroker.job',
    'pgbroker.job_payload',
    'pgbroker.job_state',
    'pgbroker.job_tag',
    'pgbroker.idempotency',
    'pgbroker.run_group',
    'pgbroker.job_dependency',
    'pgbroker.deferred_reference',
    'pgbroker.unresolved',
    'pgbroker.edge_check',
    'pgbroker.schedule',
    'pgbroker.schedule_run',
    'pgbroker.graph_turn',
    'pgbroker.execution',
    'pgbroker.job_event'
]) as tables (name);
