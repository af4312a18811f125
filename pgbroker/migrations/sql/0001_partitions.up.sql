-- The first partitions, so that a fresh database records history before any process has started.
select pgbroker.ensure_partitions_1('day', 7);

-- Functions are executable by everybody until this is said. (As a default privilege of the schema it would
-- have no effect: those only add to the defaults of the database.)
revoke execute on all functions in schema pgbroker from public;
