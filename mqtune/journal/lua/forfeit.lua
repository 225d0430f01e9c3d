-- Have all leases of an experiment run out now; for a driver that knows that no worker is left.
--
-- KEYS  1 driver  2 leases
-- ARGV  1 epoch
--
-- Returns 1; an error STALEDRIVER when a later driver exists. Repeating a call does no harm.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
redis.call('ZUNIONSTORE', KEYS[2], 1, KEYS[2], 'WEIGHTS', 0)
return 1
