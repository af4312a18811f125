-- Make sure that the history tables have partitions for now and the days to come.
--
--   width  text  day, week or month
--   ahead  int   how many after the current one
--
-- Scope:  none
-- Rows:   the names of the partitions it made.
-- Locks:  the history tables, for the moment of attaching.
select pgbroker.ensure_partitions_1(%(width)s, %(ahead)s)
