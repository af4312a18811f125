-- The first partitions, so that a fresh database records history before any process has started.
select pgbroker.ensure_partitions_1('day', 7);
