-- Cancel a run group: seal it, and cancel its live members, so many at a time.
--
--   group_id  uuid  the group
--   reason    text  why, for whoever looks later
--   by        text  who asked
--   limit     int   most members at once
--
-- Scope:  tenant
-- Rows:   one, none where this tenant has no such group: its state now, how many members were cancelled and how many
--         running ones asked to stop, and whether there may be more.
-- Locks:  the group's row, for which it waits for transactions that are adding to it; job rows, in id order.
-- Commit: edges to what lives are looked at once more.
select answer.state, answer.cancelled, answer.requested, answer.is_left
from pgbroker.cancel_group_1(%(group_id)s, %(reason)s, %(by)s, %(limit)s) as answer
