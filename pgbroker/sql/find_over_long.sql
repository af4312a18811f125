-- Look through a page of running attempts for those that run longer than they may, though their lease is renewed.
--
--   tenant    text              only this tenant's jobs; null: of all that the scope shows
--   since     timestamptz       look after this end of a lease, and
--   since_id  uuid              ... after this job, if its lease ends then
--   limit     bigint            most attempts to look at
--   timeout   double precision  seconds an attempt may take where neither job nor type says; null: any time
--   grace     interval          how much longer than it may counts as over-long
--
-- Scope:  tenant
-- Plan:   hot
-- Rows:   one per over-long attempt, or one of nulls: first how many were looked at, and the last of them by the end
--         of its lease and its id, to go on from there; then job_id, lease_token, worker_id, tenant_id, queue_id,
--         job_type_id, attempt_no, and the seconds since it was claimed. No row: there is nothing left to look at.
-- Locks:  none.
-- Index:  job_lease.
--
-- Whoever heartbeats moves its jobs towards the end of the index, so some may be seen twice and none is passed over.
-- An attempt whose lease has expired is the reaper's.
with page as materialized (
    select
        job.id, job.lease_token, job.worker_id, job.tenant_id, job.queue_id, job.job_type_id, job.attempt_count,
        job.leased_at, job.lease_expires_at, job.deadline_at
    from pgbroker.job
    where job.status = 3 /* running */
      and job.lease_expires_at >= greatest(%(since)s::timestamptz, statement_timestamp())
      and (job.lease_expires_at, job.id) > (%(since)s::timestamptz, %(since_id)s::uuid)
      and (%(tenant)s::text is null or job.tenant_id = %(tenant)s::text)
    order by job.lease_expires_at, job.id
    limit %(limit)s
),
edge as materialized (
    select
        count(*) over () as looked_at,
        page.lease_expires_at,
        page.id
    from page
    order by page.lease_expires_at desc, page.id desc
    limit 1
),
late as materialized (
    select
        page.*,
        extract(epoch from statement_timestamp() - page.leased_at)::double precision as seconds
    from page
    left join pgbroker.job_payload as payload on payload.job_id = page.id
    left join pgbroker.job_type on job_type.id = page.job_type_id
    cross join lateral (
        select coalesce(
            jsonb_path_query_first(payload.options, '$.timeout ? (@.type() == "number" && @ > 0)')::numeric,
            jsonb_path_query_first(job_type.defaults, '$.timeout ? (@.type() == "number" && @ > 0)')::numeric,
            %(timeout)s::double precision::numeric
        ) as timeout
    ) as given
    where page.leased_at
            + round(least(given.timeout, 31622400), 6)::double precision * interval '1 second'
            + %(grace)s::interval
            < statement_timestamp()
       or page.deadline_at + %(grace)s::interval < statement_timestamp()
)
select
    edge.looked_at,
    edge.lease_expires_at,
    edge.id,
    late.id as job_id,
    late.lease_token,
    late.worker_id,
    late.tenant_id,
    late.queue_id,
    late.job_type_id,
    late.attempt_count as attempt_no,
    late.seconds
from edge
left join late on true
