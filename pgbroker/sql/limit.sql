-- Limit how long each further statement of this transaction may take, or wait for a lock.
--
--   name   text  statement_timeout or lock_timeout
--   limit  text  a time such as 800ms; 0: no limit
--
-- Scope:  none
-- Rows:   one: the limit from before, to be put back.
-- Locks:  none.
select before.setting
from (select current_setting(%(name)s) as setting) as before
cross join lateral (select set_config(%(name)s, %(limit)s, true)) as after
