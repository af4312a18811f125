-- The schema pgbroker: tables of the engine. PUBLIC has no rights here; every statement is schema-qualified.

create schema pgbroker;
revoke all on schema pgbroker from public;

comment on schema pgbroker is 'pgbroker: jobs, leases, history';

-- ---------------------------------------------------------------- what operators and code declare

create table pgbroker.queue (
    id smallint generated always as identity primary key,
    name text collate "C" not null,
    ageing_seconds double precision,
    lease_seconds double precision,
    created_at timestamptz not null default statement_timestamp(),
    constraint queue_name_unique unique (name),
    constraint queue_name_valid check (name ~ '^[A-Za-z0-9._:-]{1,63}$'),
    constraint queue_ageing_valid check (ageing_seconds between 0 and 315360000),
    constraint queue_lease_valid check (lease_seconds between 1 and 86400)
);

-- No unique key: a conflict would make one enqueuer wait for another's transaction. Readers take distinct.
create table pgbroker.queue_priority (
    id bigint generated always as identity primary key,
    queue_id smallint not null,
    priority smallint not null
);
create index queue_priority_queue on pgbroker.queue_priority (queue_id, priority);

create table pgbroker.job_type (
    id int generated always as identity primary key,
    name text collate "C" not null,
    version int not null default 1,
    aliases text[] not null default '{}',
    defaults jsonb not null default '{}',
    last_seen_at timestamptz not null default statement_timestamp(),
    constraint job_type_name_unique unique (name),
    constraint job_type_name_valid check (name ~ '^[A-Za-z0-9._:-]{1,200}$'),
    constraint job_type_version_valid check (version >= 1)
);
create index job_type_aliases on pgbroker.job_type using gin (aliases);

create table pgbroker.pause (
    id bigint generated always as identity primary key,
    kind text not null,
    queue_id smallint,
    job_type_id int,
    tenant text collate "C",
    paused_at timestamptz not null default statement_timestamp(),
    until timestamptz,
    by text not null default '',
    reason text not null default '',
    constraint pause_target_unique unique nulls not distinct (queue_id, job_type_id, tenant),
    constraint pause_kind_valid check (
        case kind
            when 'queue' then queue_id is not null and job_type_id is null and tenant is null
            when 'job_type' then queue_id is null and job_type_id is not null and tenant is null
            when 'tenant' then queue_id is null and job_type_id is null and tenant is not null
            when 'queue_tenant' then queue_id is not null and job_type_id is null and tenant is not null
            else false
        end
    )
);

-- ---------------------------------------------------------------- jobs

-- A domain, not a CHECK of the table: it is looked at when a row is made, not again with every update.
-- (The regular expression cost a third of a claim.) And no {1,63}: a counted repeat has a state for each count, which the
-- engine makes anew for each value: 3 us for seven letters, 9 us for forty, where this takes a tenth.
create domain pgbroker.tenant_name as text collate "C"
    constraint tenant_name_valid check (value !~ '[^A-Za-z0-9._-]' and length(value) between 1 and 63);

-- Whether a body's name in the storage lies in its tenant's folder: a row must not point at another tenant's file.
--
-- A folder is the tenant's name, written so that no file system takes two of them for one: upper case and dots
-- are spelled out ("_a" for A, "_2" for a dot, "__" for an underscore), so there is no folder ".." either.
--
-- In plpgsql: SQL would be read, and put in place, with each statement that writes a row, whether it has a body or not.
create function pgbroker.owns_body_1(tenant text, name text) returns boolean
language plpgsql immutable parallel safe as $function$
begin
    return length(name) <= 500
        and starts_with(
            name,
            format(
                'pgbroker/%s/',
                translate(lower(regexp_replace(tenant collate "C", '([A-Z_.])', '_\1', 'g')), '.', '2')
            )
        )
        and name !~ '(^|/)[.]{0,2}(/|$)'
        and name !~ '[^ -~]|\\';
end
$function$;

-- The hot row: narrow, without arguments, results or texts.
create table pgbroker.job (
    id uuid not null,
    queue_id smallint not null,
    job_type_id int not null,
    tenant_id pgbroker.tenant_name not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    status smallint not null,
    priority smallint not null default 0,
    ready_at timestamptz,
    available_at timestamptz,
    attempt_count int not null default 0,
    max_attempts int not null default 5,
    declared_attempts int not null default 5,
    crash_count int not null default 0,
    lease_token bigint not null default 0,
    worker_id uuid,
    leased_at timestamptz,
    lease_expires_at timestamptz,
    cancel_requested_at timestamptz,
    deadline_at timestamptz,
    run_group_id uuid,
    name text collate "C",
    lane text collate "C",
    created_at timestamptz not null default statement_timestamp(),
    finished_at timestamptz,
    constraint job_pkey primary key (id),
    -- PostgreSQL reads the stored tree of each constraint again with every statement, which for one row costs more
    -- than all else: so one array for many constants, and nothing that follows from something else.
    constraint job_status_valid check (status = any ('{0, 1, 2, 3, 4, 5, 10, 11, 12, 13}'::smallint[])),
    constraint job_priority_valid check (priority between -100 and 100),
    constraint job_numbers_valid check (
        crash_count >= 0
        and attempt_count >= crash_count
        and max_attempts >= attempt_count
        and declared_attempts >= 1
        and lease_token >= 0
    ),
    constraint job_running_is_leased check (
        (status = 3 /* running */) = (worker_id is not null)
        and (status = 3 /* running */) = (lease_expires_at is not null)
    ),
    constraint job_scheduled_has_time check (status <> 0 /* scheduled */ or available_at is not null),
    constraint job_ready_has_time check (status <> all ('{2, 3}'::smallint[]) /* not ready or running */ or ready_at is not null),
    -- What Python cannot read would spoil every list and every claim it stands in.
    constraint job_times_readable check (
        least(
            created_at, ready_at, available_at, deadline_at, leased_at, lease_expires_at, cancel_requested_at, finished_at
        ) >= '1970-01-01 00:00:00+00'
        and greatest(
            created_at, ready_at, available_at, deadline_at, leased_at, lease_expires_at, cancel_requested_at, finished_at
        ) <= '9000-01-01 00:00:00+00'
    ),
    constraint job_terminal_is_finished check ((status >= 10) = (finished_at is not null))
) with (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000,
    autovacuum_vacuum_cost_delay = 1
);

create index job_claim on pgbroker.job (queue_id, priority desc, ready_at, id) where status = 2 /* ready */;
create index job_due on pgbroker.job (queue_id, available_at) where status = 0 /* scheduled */;
create index job_lease on pgbroker.job (lease_expires_at) where status = 3 /* running */;
create index job_deadline on pgbroker.job (deadline_at)
    where deadline_at is not null and status in (0, 1, 2, 4, 5) /* scheduled waiting ready suspended blocked */;
create index job_finished on pgbroker.job (finished_at) where status >= 10;
create index job_gone_wrong on pgbroker.job (status, finished_at) where status in (11, 12, 13) /* failed dead_letter cancelled */;
-- For the reconciler alone, by pages; jobs that wait for nothing are not in it.
create index job_waiting on pgbroker.job (id) where status in (1, 5) /* waiting blocked */;
create index job_group on pgbroker.job (run_group_id, status) where run_group_id is not null;
create unique index job_group_name on pgbroker.job (run_group_id, name) where name is not null;

-- Written once, read after the claim. Of arguments in a body, args keeps the stub: version, sha256, bytes.
create table pgbroker.job_payload (
    job_id uuid not null,
    tenant_id text collate "C" not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    type_version int not null default 1,
    args jsonb not null,
    args_body text collate "C",
    options jsonb,
    idempotency_key text collate "C",
    idempotency_scope text,
    window_seconds double precision,
    principal text,
    correlation_id text,
    traceparent text,
    tags text[],
    constraint job_payload_pkey primary key (job_id),
    constraint job_payload_body_owned check (args_body is null or pgbroker.owns_body_1(tenant_id, args_body))
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

-- One tenant's jobs, for lists alone; here, since an index of jobs gets a new entry whenever one is claimed or ends. The
-- id as bytes, in the same order, since no look-up by id may come this way: where statistics say that the table is empty
-- (a vacuum beside a large uncommitted insert), a scan of this whole index seems as cheap as a look in the primary key.
create index job_payload_tenant on pgbroker.job_payload (tenant_id, uuid_send(job_id));

-- What only some jobs need: why one was cancelled, blocked or given up without an attempt.
create table pgbroker.job_state (
    job_id uuid not null,
    tenant_id text collate "C" not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    reason_code text not null,
    reason text not null default '',
    by text not null default '',
    -- The job whose bad end was the beginning of it, where there is one.
    cause_id uuid,
    changed_at timestamptz not null default statement_timestamp(),
    constraint job_state_pkey primary key (job_id)
);

-- Whose job it is is said twice, and the key says the job alone: a row of one tenant for another's job would hold up
-- that one's verbs, and be told its reasons. A trigger of ours, which no setting of a session switches off.
create function pgbroker.job_state_of_own_job_1() returns trigger
language plpgsql as $function$
begin
    -- The tenant as a value: as a way in it would read all of its jobs, where statistics say that there are none.
    if not exists (select from pgbroker.job where job.id = new.job_id and (job.tenant_id = new.tenant_id) is true) then
        raise exception 'pgbroker: tenant % has no job % to give a reason for', new.tenant_id, new.job_id
            using errcode = 'PB002', hint = 'A reason is written by the verb that ends the job.';
    end if;
    return new;
end
$function$;

create trigger job_state_of_own_job
before insert on pgbroker.job_state
for each row execute function pgbroker.job_state_of_own_job_1();

-- The tags of the jobs that have any, once more, to find jobs by: the policy lets no array index serve.
create table pgbroker.job_tag (
    tag text collate "C" not null,
    tenant_id text collate "C" not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    job_id uuid not null,
    constraint job_tag_pkey primary key (tag, tenant_id, job_id)
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

create table pgbroker.idempotency (
    tenant_id text collate "C" not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    job_type_id int not null,
    key text collate "C" not null,
    job_id uuid not null,
    digest bytea not null,
    scope text not null default 'held',
    expires_at timestamptz,
    created_at timestamptz not null default statement_timestamp(),
    constraint idempotency_pkey primary key (tenant_id, job_type_id, key),
    constraint idempotency_scope_valid check (scope in ('held', 'live', 'retained', 'window')),
    constraint idempotency_window_expires check ((scope = 'window') = (expires_at is not null)),
    constraint idempotency_key_valid check (length(key) between 1 and 255)
) with (fillfactor = 90);
create index idempotency_job on pgbroker.idempotency (job_id);

-- ---------------------------------------------------------------- what waits for what

-- Jobs that belong together. state: 0 open, 1 sealed, 10 completed, 11 failed, 13 cancelled. A group ends when it is
-- sealed and all its members have ended; without a tolerance it completes only if every one of them completed.
create table pgbroker.run_group (
    id uuid not null,
    tenant_id pgbroker.tenant_name not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    name text collate "C" not null,
    state smallint not null default 0,
    tolerate_count int,
    tolerate_percent double precision,
    -- How many jobs in a row its longest chain has, known when it is sealed.
    level int not null default 0,
    -- Each an entry of enqueue_many_1, and the job that came of it: one at most in the life of a group.
    on_completed jsonb,
    on_failed jsonb,
    completed_job_id uuid,
    failed_job_id uuid,
    callback_error text,
    cancel_requested_at timestamptz,
    -- The transaction that made it: as long as that is open, nobody else can add to it or wait for it.
    opened_in bigint not null default pg_current_xact_id()::text::bigint,
    created_at timestamptz not null default statement_timestamp(),
    sealed_at timestamptz,
    finished_at timestamptz,
    constraint run_group_pkey primary key (id),
    constraint run_group_name_unique unique (tenant_id, name),
    constraint run_group_name_valid check (length(name) between 1 and 255),
    constraint run_group_state_valid check (state = any ('{0, 1, 10, 11, 13}'::smallint[])),
    constraint run_group_sealed check ((state > 0) = (sealed_at is not null)),
    constraint run_group_finished check ((state >= 10) = (finished_at is not null)),
    constraint run_group_tolerance check (
        (tolerate_count is null or tolerate_percent is null)
        and coalesce(tolerate_count, 0) >= 0
        and coalesce(tolerate_percent, 0) between 0 and 100
    )
) with (fillfactor = 80);
create index run_group_sealed on pgbroker.run_group (id) where state = 1 /* sealed */;
create index run_group_tenant on pgbroker.run_group (tenant_id, created_at);

-- An edge. kind: 0 a job waits for a job, 1 a job for a group, 2 a group for a job, 3 a group for a group; a group's
-- own edges are copied to each of its members. on_failure: 0 cancel, 1 block, 2 ignore.
--
-- It holds its dependent back while satisfied_at is null. outcome is 0 while the prerequisite lives, then how that
-- ended: kept here, so that nothing hangs on its row any more.
create table pgbroker.job_dependency (
    id bigint generated always as identity,
    dependent_id uuid not null,
    prerequisite_id uuid not null,
    kind smallint not null,
    tenant_id text collate "C" not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    on_failure smallint not null default 0,
    outcome smallint not null default 0,
    satisfied_at timestamptz,
    level int not null default 1,
    created_at timestamptz not null default statement_timestamp(),
    constraint job_dependency_pkey primary key (id),
    constraint job_dependency_not_self check (dependent_id <> prerequisite_id),
    constraint job_dependency_valid check (
        kind between 0 and 3
        and on_failure between 0 and 2
        and outcome = any ('{0, 10, 11, 12, 13}'::smallint[])
        and level between 1 and 10000
    ),
    constraint job_dependency_satisfied check (satisfied_at is null or outcome > 0)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
-- Each condition that is asked for can be asked of one index alone (look_ups_1): where statistics say that the table is
-- empty, another one may be read from end to end for every row. So the prerequisite is there as bytes, in the same order,
-- and what is open is said in other words.
create unique index job_dependency_edge on pgbroker.job_dependency (dependent_id, uuid_send(prerequisite_id));
create index job_dependency_open on pgbroker.job_dependency (dependent_id, outcome)
    where coalesce(satisfied_at, 'infinity') = 'infinity';
create index job_dependency_prerequisite on pgbroker.job_dependency (prerequisite_id, satisfied_at);

-- What a job waits for that need not exist yet: a group, or a job in one, by name. One that has expired is kept with
-- its job: a retry looks it up again.
create table pgbroker.deferred_reference (
    id bigint generated always as identity,
    dependent_id uuid not null,
    tenant_id text collate "C" not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    group_name text collate "C" not null,
    job_name text collate "C",
    on_failure smallint not null default 0,
    deadline_at timestamptz not null,
    expired_at timestamptz,
    created_at timestamptz not null default statement_timestamp(),
    constraint deferred_reference_pkey primary key (id),
    constraint deferred_reference_unique unique nulls not distinct (dependent_id, group_name, job_name),
    constraint deferred_reference_valid check (
        on_failure between 0 and 2
        and length(group_name) between 1 and 255
        and length(job_name) between 1 and 255
        and deadline_at <= '9000-01-01 00:00:00+00'
    )
);
create index deferred_reference_deadline on pgbroker.deferred_reference (deadline_at);
-- In an order that no other index gives: a pass is to read none that has expired, however many are kept.
create index deferred_reference_awaited on pgbroker.deferred_reference (id, expired_at) where expired_at is null;

-- Jobs and groups whose dependents are to be looked at: written by whoever ends or revives them, taken by a pass. What
-- a pass does follows from what is true then, so that one row too many is only work.
create table pgbroker.unresolved (
    id bigint generated always as identity,
    prerequisite_id uuid not null,
    tenant_id text collate "C" not null,
    not_before timestamptz not null default statement_timestamp(),
    constraint unresolved_pkey primary key (id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);

-- The live prerequisites of the edges that a transaction has made: at its commit they are looked at once more. A row
-- is gone before anybody else could see it.
create table pgbroker.edge_check (
    id bigint generated always as identity,
    transaction_id bigint not null default pg_current_xact_id()::text::bigint,
    tenant_id text collate "C" not null,
    prerequisite_ids uuid[] not null,
    constraint edge_check_pkey primary key (transaction_id, id)
) with (autovacuum_vacuum_threshold = 500);

-- Counts the turns that were taken in adding what could close a cycle: whoever has an old snapshot learns from it that
-- there are edges that it does not see.
create table pgbroker.graph_turn (
    tenant_id text collate "C" not null,
    number bigint not null default 1,
    constraint graph_turn_pkey primary key (tenant_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);

-- ---------------------------------------------------------------- schedules

-- When jobs are created again and again. template: {"jobs": [an entry of enqueue_many_1, ...], "group": {options of
-- open_group_1}}; one entry without a name is a job, anything else a run group with its own jobs and edges.
--
-- Every tick up to the watermark has been decided upon, and next_run_at is the first one after it: null while nothing
-- is to come, so also while the schedule is disabled or paused. Whoever changes a row for another reason than a tick
-- raises the revision: a decision that was made for an earlier one changes nothing.
create table pgbroker.schedule (
    id uuid not null,
    tenant_id pgbroker.tenant_name not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    name text collate "C" not null,
    expression text not null,
    time_zone text not null,
    template jsonb not null,
    ambiguous text not null default 'auto',
    nonexistent text not null default 'auto',
    misfire text not null default 'run_once',
    misfire_count int not null default 100,
    misfire_window_seconds double precision not null default 604800,
    overlap text not null default 'allow',
    jitter_seconds double precision not null default 0,
    starts_at timestamptz,
    ends_at timestamptz,
    enabled boolean not null default true,
    disabled_reason text not null default '',
    paused_at timestamptz,
    paused_until timestamptz,
    paused_by text not null default '',
    pause_reason text not null default '',
    next_run_at timestamptz,
    watermark timestamptz not null default statement_timestamp(),
    -- The tick that waits until no other occurrence runs.
    buffered_for timestamptz,
    last_dispatched_for timestamptz,
    last_dispatched_at timestamptz,
    -- Of the zone's rules that next_run_at was worked out by.
    zone_rules text not null default '',
    declared boolean not null default false,
    -- The project whose code says it: another one that shares the database leaves it alone.
    declared_by text not null default '',
    -- What the code said when it was last written here.
    declaration text not null default '',
    revision bigint not null default 0,
    failure_count int not null default 0,
    failed_at timestamptz,
    error_code text,
    error text,
    -- Of ticks up to here it is no longer known whether they were created.
    forgotten_until timestamptz,
    created_at timestamptz not null default statement_timestamp(),
    updated_at timestamptz not null default statement_timestamp(),
    constraint schedule_pkey primary key (id),
    constraint schedule_name_unique unique (tenant_id, name),
    constraint schedule_name_valid check (length(name) between 1 and 200),
    constraint schedule_expression_valid check (length(expression) between 1 and 255),
    constraint schedule_template_valid check (jsonb_typeof(template -> 'jobs') = 'array'),
    constraint schedule_policies_valid check (
        ambiguous in ('auto', 'once', 'twice')
        and nonexistent in ('auto', 'skip', 'next_valid')
        and misfire in ('skip', 'run_once', 'catch_up')
        and overlap in ('allow', 'skip', 'buffer_one', 'cancel_other')
    ),
    constraint schedule_numbers_valid check (
        misfire_count between 1 and 10000
        and misfire_window_seconds > 0
        and misfire_window_seconds <= 316224000
        and jitter_seconds >= 0
        and jitter_seconds <= 86400
    ),
    constraint schedule_bounds_valid check (ends_at >= starts_at),
    constraint schedule_pause_valid check (paused_until is null or paused_at is not null),
    constraint schedule_runs_when_it_may check (next_run_at is null or (enabled and paused_at is null)),
    constraint schedule_next_is_undecided check (next_run_at > watermark),
    -- What Python cannot read would spoil the page of a pass.
    constraint schedule_times_readable check (
        least(
            starts_at, ends_at, paused_at, paused_until, next_run_at, watermark, buffered_for, last_dispatched_for,
            last_dispatched_at, failed_at, forgotten_until, created_at, updated_at
        ) >= '1970-01-01 00:00:00+00'
        and greatest(
            starts_at, ends_at, paused_at, paused_until, next_run_at, watermark, buffered_for, last_dispatched_for,
            last_dispatched_at, failed_at, forgotten_until, created_at, updated_at
        ) <= '9000-01-01 00:00:00+00'
    )
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
create index schedule_due on pgbroker.schedule (next_run_at, id) where next_run_at is not null;
create index schedule_buffered on pgbroker.schedule (id) where buffered_for is not null;
create index schedule_pause_ends on pgbroker.schedule (paused_until, id) where paused_until is not null;
create index schedule_declared on pgbroker.schedule (declared_by) where declared;
-- For lists of all tenants.
create index schedule_name on pgbroker.schedule (name, id);
-- For whoever looks for trouble, or counts it.
create index schedule_failing on pgbroker.schedule (id) where failure_count > 0;
-- What a pass has disabled: its reason begins with the code of the error.
create index schedule_unreadable on pgbroker.schedule (id) where not enabled and disabled_reason ~ '^\[[a-z_]+\] ';
create index schedule_stopped on pgbroker.schedule (id) where not enabled or paused_at is not null;

-- Which code speaks for the schedules of a project: the newest. former: what spoke before it, the latest last.
create table pgbroker.schedule_declarer (
    project text collate "C" not null,
    digest text not null,
    former text[] not null default '{}',
    since timestamptz not null default statement_timestamp(),
    seen_at timestamptz not null default statement_timestamp(),
    constraint schedule_declarer_pkey primary key (project)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);

-- What became of a tick, of a run that somebody asked for, or of a tick of the past that was made up for: one row each,
-- so that none is created twice, whoever leads.
create table pgbroker.schedule_run (
    schedule_id uuid not null,
    scheduled_for timestamptz not null,
    tenant_id text collate "C" not null
        default coalesce(nullif(current_setting('pgbroker.tenant_id', true), ''), 'default'),
    kind text not null default 'tick',
    state text not null,
    job_id uuid,
    run_group_id uuid,
    created_at timestamptz not null default statement_timestamp(),
    lateness_seconds double precision,
    error_code text,
    error text,
    -- Of what was created: whoever asked which occurrences live has seen that it was over, and it has not come back since.
    seen_over boolean not null default false,
    constraint schedule_run_pkey primary key (schedule_id, scheduled_for),
    constraint schedule_run_kind_valid check (kind in ('tick', 'run_now', 'backfill')),
    constraint schedule_run_state_valid check (
        case state
            when 'created' then (job_id is null) <> (run_group_id is null)
            when 'failed' then error_code is not null and job_id is null and run_group_id is null
            when 'skipped' then job_id is null and run_group_id is null
            when 'buffered' then job_id is null and run_group_id is null
            when 'missed' then job_id is null and run_group_id is null
            else false
        end
    )
) with (autovacuum_vacuum_insert_scale_factor = 0.1);
-- What may run: these are looked at where occurrences must not overlap.
create index schedule_run_open on pgbroker.schedule_run (schedule_id, scheduled_for)
    where state = 'created' and kind <> 'backfill' and not seen_over;
create index schedule_run_age on pgbroker.schedule_run (created_at);
create index schedule_run_job on pgbroker.schedule_run (job_id) where job_id is not null;
create index schedule_run_group on pgbroker.schedule_run (run_group_id) where run_group_id is not null;

-- ---------------------------------------------------------------- history

-- One row per ended attempt; append-only.
create sequence pgbroker.execution_id_seq cache 100;
create table pgbroker.execution (
    id bigint not null default nextval('pgbroker.execution_id_seq'),
    job_id uuid not null,
    tenant_id text collate "C" not null,
    attempt_no int not null,
    state smallint not null,
    worker_id uuid,
    started_at timestamptz,
    completed_at timestamptz not null default statement_timestamp(),
    duration_seconds double precision,
    error_code text,
    error text,
    traceback text,
    result jsonb,
    result_body text collate "C",
    log_tail text,
    constraint execution_state_valid check (state between 1 and 9),
    constraint execution_body_owned check (result_body is null or pgbroker.owns_body_1(tenant_id, result_body))
) partition by range (completed_at);
create index execution_job on pgbroker.execution (job_id, attempt_no);
-- What fails, now: attempts that went well are not in it.
create index execution_failed on pgbroker.execution (completed_at)
    where state in (2, 3, 5, 6) /* failed timed_out lease_expired crashed */;
alter sequence pgbroker.execution_id_seq owned by pgbroker.execution.id;

-- event: a status number (the status the job changed to), or 20: cancel requested.
create sequence pgbroker.job_event_id_seq cache 100;
create table pgbroker.job_event (
    id bigint not null default nextval('pgbroker.job_event_id_seq'),
    job_id uuid not null,
    tenant_id text collate "C" not null,
    event smallint not null,
    occurred_at timestamptz not null default statement_timestamp(),
    metadata jsonb
) partition by range (occurred_at);
create index job_event_job on pgbroker.job_event (job_id);
alter sequence pgbroker.job_event_id_seq owned by pgbroker.job_event.id;

-- ---------------------------------------------------------------- the fleet

-- One row per process start, never reused. It expires by time; recovery never depends on it.
create table pgbroker.worker (
    id uuid not null,
    name text not null,
    host text not null,
    pid int not null,
    version text not null,
    queues text[] not null,
    slots int not null,
    running int not null default 0,
    held int not null default 0,
    started_at timestamptz not null default statement_timestamp(),
    heartbeat_at timestamptz not null default statement_timestamp(),
    expires_at timestamptz not null,
    draining_at timestamptz,
    stopped_at timestamptz,
    constraint worker_pkey primary key (id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);
create index worker_heartbeat on pgbroker.worker (started_at);

-- Who does what only one has to do: a lease that expires by the clock of the database, so that it works through a
-- transaction pooler too. The epoch rises with each reign, and a row stays: what it was once, it is never again.
create table pgbroker.leader (
    duty text collate "C" not null,
    holder uuid not null,
    name text not null,
    epoch bigint not null,
    since timestamptz not null,
    expires_at timestamptz not null,
    constraint leader_pkey primary key (duty),
    constraint leader_epoch_valid check (epoch >= 1)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);

-- How much stood in each queue, every few seconds. A sample is coarse if it is the queue's first in five minutes;
-- the others are kept for hours only.
create table pgbroker.queue_sample (
    queue_id smallint not null,
    sampled_at timestamptz not null default statement_timestamp(),
    ready bigint not null,
    scheduled bigint not null,
    running bigint not null,
    oldest_ready_seconds double precision,
    coarse boolean not null default false,
    constraint queue_sample_pkey primary key (queue_id, sampled_at)
);
create index queue_sample_time on pgbroker.queue_sample (coarse, sampled_at);

-- Each row has one writer, the worker that settles; readers add up. The leader folds old ones into wider buckets:
-- fold 0 is a minute of one worker, 1 a minute of all of them, 2 an hour, 3 a day.
create table pgbroker.job_counter (
    job_type_id int not null,
    queue_id smallint not null,
    worker_id uuid not null,
    bucket timestamptz not null,
    fold smallint not null default 0,
    done bigint not null default 0,
    retried bigint not null default 0,
    snoozed bigint not null default 0,
    failed bigint not null default 0,
    dead bigint not null default 0,
    cancelled bigint not null default 0,
    run_seconds double precision not null default 0,
    wait_seconds double precision not null default 0,
    constraint job_counter_pkey primary key (job_type_id, queue_id, worker_id, bucket, fold),
    constraint job_counter_fold_valid check (fold between 0 and 3)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);
create index job_counter_fold on pgbroker.job_counter (fold, bucket);

insert into pgbroker.queue (name) values ('default');
insert into pgbroker.queue_priority (queue_id, priority) select id, 0 from pgbroker.queue;
