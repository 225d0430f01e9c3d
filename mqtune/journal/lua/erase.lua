-- Forget an experiment, all but who drives it, so that another can begin in its place.
--
-- KEYS  1 driver  2 meta  3 journal  4 leases  5 staged  6 checkpoints  7… every trial
-- ARGV  1 epoch
--
-- Returns 1; an error STALEDRIVER when a later driver exists. Repeating it does no harm. Who still runs an attempt is fenced
-- from here on, as no claim is known any more.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
local kept = redis.call('HMGET', KEYS[2], 'driver_until', 'on_loss', 'loss_ms')
for i = 2, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('HSET', KEYS[2], 'driver_until', kept[1], 'on_loss', kept[2], 'loss_ms', kept[3])
return 1
