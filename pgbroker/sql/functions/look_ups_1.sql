-- Look-ups of edges and members that go by the one right index, whatever the planner knows.
--
-- Released versions are frozen (a test compares their hash); a change is a new file and a migration.
--
-- Where statistics say that a table is empty, as those of a vacuum beside a large uncommitted insert do, every index that
-- a condition can be asked of seems to cost the same, and one may be read from end to end for every row. Each of these
-- asks what one index alone can answer. PostgreSQL puts their text where they are called.

-- Who waits for a job or a group: the edges to it that are open. By job_dependency_prerequisite.
create function pgbroker.open_edges_to_1(prerequisite uuid)
returns table (
    id bigint, dependent_id uuid, prerequisite_id uuid, kind smallint, tenant_id text, on_failure smallint, outcome smallint,
    place tid
)
language sql stable as $function$
    select edge.id, edge.dependent_id, edge.prerequisite_id, edge.kind, edge.tenant_id, edge.on_failure, edge.outcome,
        edge.ctid
    from pgbroker.job_dependency as edge
    where edge.prerequisite_id = prerequisite
      and edge.satisfied_at is null
    offset 0
$function$;

-- What a job or a group still waits for: its edges that are open. By job_dependency_open, or job_dependency_edge.
create function pgbroker.open_edges_of_1(dependent uuid)
returns table (
    id bigint, dependent_id uuid, prerequisite_id uuid, kind smallint, tenant_id text, on_failure smallint, outcome smallint
)
language sql stable as $function$
    select edge.id, edge.dependent_id, edge.prerequisite_id, edge.kind, edge.tenant_id, edge.on_failure, edge.outcome
    from pgbroker.job_dependency as edge
    where edge.dependent_id = dependent
      and coalesce(edge.satisfied_at, 'infinity') = 'infinity'
    order by edge.outcome
    offset 0
$function$;

-- Those of its open edges whose prerequisite ended in another way than it should. By job_dependency_open: a job may wait
-- for ten thousand others, none of which has.
create function pgbroker.bad_edges_of_1(dependent uuid)
returns table (id bigint, prerequisite_id uuid, on_failure smallint, outcome smallint)
language sql stable as $function$
    select edge.id, edge.prerequisite_id, edge.on_failure, edge.outcome
    from pgbroker.job_dependency as edge
    where edge.dependent_id = dependent
      and coalesce(edge.satisfied_at, 'infinity') = 'infinity'
      and edge.outcome > 0
    order by edge.outcome
    offset 0
$function$;

-- How deep a job is: its longest chain, which all its edges know; null where it has none.
create function pgbroker.level_of_1(dependent uuid) returns int
language sql stable as $function$
    select edge.level
    from pgbroker.job_dependency as edge
    where edge.dependent_id = dependent
    limit 1
$function$;

-- The members of a group that are not over. By job_group.
create function pgbroker.live_members_1(of_group uuid) returns table (id uuid, status smallint, cancel_requested_at timestamptz)
language sql stable as $function$
    select job.id, job.status, job.cancel_requested_at
    from pgbroker.job
    where job.run_group_id = of_group
      and job.status < 10
    order by job.status
    offset 0
$function$;

-- The members of a group that ended in another way than they should. By job_group.
create function pgbroker.bad_members_1(of_group uuid) returns table (id uuid, status smallint, finished_at timestamptz)
language sql stable as $function$
    select job.id, job.status, job.finished_at
    from pgbroker.job
    where job.run_group_id = of_group
      and job.status > 10
    order by job.status
    offset 0
$function$;
