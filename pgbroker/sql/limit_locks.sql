-- Limit how long each further statement of this transaction may wait for a lock.
--
--   limit  text  a time such as 800ms; 0: no limit
--
-- Scope:  none
-- Rows:   one: the limit from before, to be put back.
-- Locks:  none.
select before.setting
from (select current_setting('lock_timeout') as setting) as before
cross join lateral (select set_config('lock_timeout', %(limit)s, true)) as after
