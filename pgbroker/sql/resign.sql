-- End a lease on a duty before its time, so that another one may take it at once.
--
--   duty    text    what is led
--   holder  uuid    who leads
--   epoch   bigint  ... in which reign
--
-- Scope:  none
-- Rows:   the duty, if it was still led in that reign.
-- Locks:  the duty's row.
-- Index:  leader_pkey.
update pgbroker.leader
set expires_at = statement_timestamp()
where duty = %(duty)s
  and holder = %(holder)s
  and epoch = %(epoch)s
  and expires_at > statement_timestamp()
returning duty
