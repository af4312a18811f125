-- Tell whether dependents of something that has ended, or come back, are left to a pass.
--
-- Scope:  all
-- Plan:   hot
-- Rows:   one.
-- Locks:  none.
-- Index:  unresolved_pkey.
select exists (select from pgbroker.unresolved) as is_left
