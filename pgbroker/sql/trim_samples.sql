-- Delete a page of old samples of one kind, oldest first.
--
--   coarse  boolean   those that are the first of their queue in five minutes, or all the others
--   age     interval  only those that are older
--   limit   bigint    most samples to delete
--
-- Scope:  none
-- Rows:   one: how many were deleted.
-- Locks:  the samples, skip locked.
-- Index:  queue_sample_time.
with old as materialized (
    select sample.queue_id, sample.sampled_at
    from pgbroker.queue_sample as sample
    where sample.coarse = %(coarse)s
      and sample.sampled_at < statement_timestamp() - %(age)s::interval
    order by sample.sampled_at
    limit %(limit)s
    for no key update skip locked
),
gone as (
    delete from pgbroker.queue_sample as sample
    using old
    where sample.queue_id = old.queue_id
      and sample.sampled_at = old.sampled_at
    returning 1
)
select count(*) from gone
