-- Forget an experiment, all but who drives it, so that another can begin in its place.
--
-- KEYS  1 driver  2 journal  3 meta  4 leases  5 staged  6 checkpoints  7 requests  8 code  9 chapters  10… every trial
-- ARGV  1 epoch
--
-- Returns 1; an error STALEDRIVER when a later driver exists. Repeating it does no harm. Whoever still runs an attempt is fenced
-- from here on, as no claim is known any more. The ids of entries go on rising: the stream is emptied and not deleted, because
-- a new one may repeat the ids of its first millisecond.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
local kept = redis.call('HMGET', KEYS[3], 'driver_until', 'on_loss', 'loss_ms')
-- This frees memory, and so a full server runs all that follows.
redis.call('XTRIM', KEYS[2], 'MAXLEN', 0)
for i = 3, #KEYS do redis.call('DEL', KEYS[i]) end
for i = 10, #KEYS do forget_seats(KEYS[i]) end
redis.call('HSET', KEYS[3], 'driver_until', kept[1])
-- A driver may not have had a heartbeat yet.
if kept[2] then redis.call('HSET', KEYS[3], 'on_loss', kept[2], 'loss_ms', kept[3]) end
return 1
