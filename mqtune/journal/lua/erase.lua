-- Erase an experiment except its driver's lock, so that another can begin in its place.
--
-- KEYS  1 driver  2 journal  3 meta  4 leases  5 staged  6 checkpoints  7 requests  8 code  9 chapters  10… every trial
-- ARGV  1 epoch
--
-- Returns 1; an error STALEDRIVER if a later driver exists. Idempotent. Running attempts are fenced, because their
-- claims are unknown from here on. The stream is emptied and not deleted, because a new stream might repeat ids.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
local kept = redis.call('HMGET', KEYS[3], 'driver_until', 'on_loss', 'loss_ms')
-- First, because it frees memory: a full server then runs all other commands.
redis.call('XTRIM', KEYS[2], 'MAXLEN', 0)
for i = 3, #KEYS do redis.call('DEL', KEYS[i]) end
for i = 10, #KEYS do forget_tasks(KEYS[i]) end
redis.call('HSET', KEYS[3], 'driver_until', kept[1])
-- They are missing before the driver's first heartbeat.
if kept[2] then redis.call('HSET', KEYS[3], 'on_loss', kept[2], 'loss_ms', kept[3]) end
return 1
